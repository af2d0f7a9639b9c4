"""`quantization_config`: what is served and what a GPU holds of it; what is not served is refused by the key, before and after a fetch."""

from typing import Any

import pytest
from pagoda_contracts.resources.engine import EngineSpec
from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model.config import parse_spec
from pagoda_sizing.config import declared_quantisation
from pagoda_sizing.errors import UnknownQuantisation
from pagoda_sizing.families import parse_model
from pagoda_sizing.published import published_model
from pagoda_sizing.replica import Requirement, on_cpu, on_device
from pagoda_sizing.served import unserved
from pagoda_sizing.stored import conflict, form_of, stored_as
from support.engine.quantised_files import CONFIG, FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_format_is_served_and_counted_as_a_gpu_holds_it(name: str) -> None:
    config = CONFIG | {"quantization_config": FORMATS[name].config}
    assert (unserved(config), form_of(config), declared_quantisation(config)) == ("", FORMATS[name].form, FORMATS[name].form)
    assert parse_spec(config).stored == stored_as(config)


def changed(name: str, **changes: Any) -> dict[str, Any]:
    return FORMATS[name].config | changes


def weights(name: str, **changes: Any) -> dict[str, Any]:
    config = FORMATS[name].config
    (group,) = config["config_groups"].values()
    return config | {"config_groups": {"group_0": group | {"weights": group["weights"] | changes}}}


METHODS = "quant_method must be fp8, awq, gptq, compressed-tensors"
ONE = "is not served; it must be an object with one group"


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, f"weights stored as 'bitsandbytes' are not served; {METHODS}"),
        ({}, f"weights stored as None are not served; {METHODS}"),
        ("fp8", f"weights stored as 'fp8' are not served; {METHODS}"),
        ({"quant_method": ["fp8"]}, f"weights stored as ['fp8'] are not served; {METHODS}"),
        (changed("fp8", fmt="e5m2"), "fmt 'e5m2' is not served; it must be 'e4m3'"),
        (changed("fp8", activation_scheme="other"), "activation_scheme 'other' is not served; it must be 'dynamic' or 'static'"),
        (changed("fp8-blocks", weight_block_size=[128]), "weight_block_size [128] is not served; it must be a list of two whole numbers"),
        (changed("fp8-blocks", weight_block_size=[0, 128]), "weight_block_size [0, 128] is not served"),
        (changed("fp8-blocks", weight_block_size=[128, 2**40]), "weight_block_size [128, 1099511627776] is not served"),
        (changed("awq", bits=8), "bits 8 is not served; it must be 4"),
        (changed("awq", bits=4.0), "bits 4.0 is not served; it must be 4"),
        (changed("awq", version="gemv"), "version 'gemv' is not served; it must be 'gemm'"),
        (changed("awq", zero_point=False), "zero_point False is not served; it must be True"),
        (changed("awq", group_size=0), "group_size 0 is not served; it must be -1, or a multiple of 8"),
        (changed("awq", group_size=10), "group_size 10 is not served"),
        (changed("awq", group_size=True), "group_size True is not served"),
        (changed("gptq", desc_act=True), "desc_act True is not served; it must be False or absent"),
        (changed("gptq", bits=3), "bits 3 is not served; it must be 4"),
        (changed("gptq", checkpoint_format="marlin"), "checkpoint_format 'marlin' is not served; it must be 'gptq' or 'gptq_v2'"),
        (changed("gptq", sym=1), "sym 1 is not served; it must be True or False"),
        (changed("compressed-fp8", config_groups={}), f"config_groups {{}} {ONE}"),
        (changed("compressed-fp8", config_groups={"a": {}, "b": {}}), f"config_groups {{'a': {{}}, 'b': {{}}}} {ONE}"),
        (changed("compressed-fp8", config_groups={"a": {"weights": None}}), "an object with one group that has weights"),
        (changed("compressed-fp8", config_groups=[1]), f"config_groups [1] {ONE}"),
        (
            changed("compressed-fp8", format="nvfp4-pack-quantized"),
            "format 'nvfp4-pack-quantized' is not served; it must be float-quantized",
        ),
        (changed("compressed-fp8", sparsity_config={"format": "sparse-24"}), "sparsity_config {'format': 'sparse-24'} is not served"),
        (changed("compressed-fp8", transform_config={"config_groups": {}}), "transform_config {'config_groups': {}} is not served"),
        (weights("compressed-fp8", symmetric=False), "symmetric False is not served; it must be True"),
        (weights("compressed-fp8", type="int"), "type 'int' is not served; it must be 'float'"),
        (weights("compressed-fp8", strategy="group"), "strategy 'group' is not served; it must be 'tensor' or 'channel' or 'block'"),
        (weights("compressed-fp8-block", block_structure=None), "block_structure None is not served"),
        (weights("compressed-int4", num_bits=8), "num_bits 8 is not served; it must be 4"),
        (
            weights("compressed-int4", actorder="group"),
            "actorder 'group' is not served; it must be absent or False or 'static' or 'weight'",
        ),
        (weights("compressed-int4", group_size=None), "group_size None is not served"),
    ],
)
def test_what_is_not_served_is_refused_in_the_same_words_by_all(section: Any, why: str) -> None:
    config = CONFIG | {"quantization_config": section}
    with pytest.raises(ModelRejected) as refused:
        parse_spec(config)
    assert unserved(config) == str(refused.value)
    assert str(refused.value).startswith("quantization_config: ")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("section", "one_less"),
    [
        ({}, True),
        ({"checkpoint_format": "gptq"}, True),
        ({"checkpoint_format": "gptq_v2"}, False),
        ({"format": "gptq_v2"}, False),
        ({"format": "gptq_v2", "checkpoint_format": "gptq_v2"}, False),
    ],
)
def test_either_name_of_gptqs_version_is_read(section: dict[str, str], one_less: bool) -> None:
    found = stored_as({"quantization_config": {"quant_method": "gptq", "bits": 4, **section}})
    assert found is not None
    assert found.one_less is one_less


def test_two_names_that_contradict_are_refused() -> None:
    section = {"quant_method": "gptq", "bits": 4, "format": "gptq", "checkpoint_format": "gptq_v2"}
    with pytest.raises(UnknownQuantisation, match="what checkpoint_format is"):
        stored_as({"quantization_config": section})


def test_models_with_experts_are_served_only_if_they_are_not_quantised() -> None:
    experts = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    assert "'awq' are not served for models with experts" in unserved(CONFIG | experts | {"quantization_config": FORMATS["awq"].config})


@pytest.mark.parametrize(
    ("form", "quantization", "why"),
    [
        ("fp8", "fp8", ""),
        ("bf16", "int8", ""),
        ("fp8", "int8", "quantization int8 contradicts the checkpoint, whose weights are stored in fp8; it must be fp8 or absent"),
        ("int4", "fp8", "stored in int4; it must be int4 or absent"),
    ],
)
def test_a_format_that_contradicts_the_stored_one_is_named(form: str, quantization: str, why: str) -> None:
    assert (why in conflict(form, quantization)) if why else conflict(form, quantization) == ""


LLAMA = published_model("meta-llama/Llama-3.1-8B").config
A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"


def required(name: str, **engine: Any) -> Requirement:
    model = parse_model(LLAMA | {"quantization_config": FORMATS[name].config})
    return Requirement(model, EngineSpec.model_validate({"maxModelLen": 4096} | engine))


@pytest.mark.parametrize(
    ("name", "engine", "product", "gigabytes"),
    [
        ("fp8", {}, H100, 9.1),
        ("fp8-blocks", {}, "", 9.1),
        ("fp8", {}, A100, 16.1),  # no fp8: read as bf16
        ("compressed-int8", {}, A100, 9.1),
        ("awq", {}, A100, 5.8),
        ("gptq", {"quantization": "int4"}, A100, 5.8),
        ("awq-64", {}, A100, 16.1),
        ("awq", {"deterministic": True}, A100, 16.1),
        ("awq", {"dtype": "float32"}, A100, 32.1),
    ],
)
def test_a_device_is_counted_with_what_the_daemon_holds_there(name: str, engine: dict[str, Any], product: str, gigabytes: float) -> None:
    """8.03 G parameters, of which 1.05 G are embedding and head."""
    asked = required(name, **engine)
    launch = asked.launch(cuda=True, product=product)
    wide = launch.item_bytes // 2 if launch.quantisation == "bf16" else 1
    assert asked.model.weight_bytes(launch.quantisation) * wide / 10**9 == pytest.approx(gigabytes, abs=0.1)
    room = int(gigabytes * 10**9) + (5 << 30)
    assert on_device(asked, room, product).why == ""
    assert "for weights" in on_device(asked, int(gigabytes * 10**9), product).why


@pytest.mark.parametrize("name", ["fp8", "awq", "compressed-int4"])
def test_a_cpu_is_counted_with_the_bytes_of_bf16(name: str) -> None:
    plain = Requirement(parse_model(LLAMA), EngineSpec.model_validate({"maxModelLen": 4096}))
    verdicts = [on_cpu(one, 12 << 30).why for one in (required(name), plain)]
    assert verdicts[0] == verdicts[1] != ""
    assert on_cpu(required(name, quantization="int8"), 12 << 30).why == ""


def test_a_format_that_contradicts_the_stored_one_is_refused_on_devices_only() -> None:
    asked = required("awq", quantization="int8")
    assert on_device(asked, 80 << 30, H100).why == conflict("int4", "int8")
    assert on_cpu(asked, 80 << 30).why == ""
