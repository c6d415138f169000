class Consul:
    pass


agent = Consul()
