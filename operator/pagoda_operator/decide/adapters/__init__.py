"""LoraAdapters: which ones a service has, on which replicas, and what their statuses say."""
