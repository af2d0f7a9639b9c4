"""LoRA adapters as peft writes them: read, judged and made ready for `model.lowrank`."""
