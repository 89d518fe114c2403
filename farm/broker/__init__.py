"""Redis as the broker of Celery: names of queues and tasks, messages, the transport, and the users of Redis."""
