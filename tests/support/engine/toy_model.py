"""The model directory of a simulated replica, under the name that tests know it by."""

from pagoda_daemon.simulated.replicas.text import BOS, EOS, IM_END, IM_START, TEMPLATE, VOCAB, byte_characters, tiny_model_dir, vocabulary

__all__ = ["BOS", "EOS", "IM_END", "IM_START", "TEMPLATE", "VOCAB", "byte_characters", "tiny_model_dir", "vocabulary"]
