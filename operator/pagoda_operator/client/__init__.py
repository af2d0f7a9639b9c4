"""What speaks with other processes: requests to the API server, streams from gateways, orders to daemons."""
