"""The client of one Kubernetes API server: connection, requests, and the fields that the server would drop."""
