"""Pure arithmetic: a model's config and a device give bytes, fit, time and cost."""
