import nomad

client = nomad.Nomad(host="10.0.0.1")  # <- HD604
