"""What training asks of every method, whether it comes with the package or is an example file."""

import inspect
import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aag import AAGError, tensor_files
from aag.augment import Augmentation, AutoAugment, BasicAugment
from aag.cli.parsing import field_docs
from aag.data import ImageSet
from aag.methods import Method, MethodContext, MethodSettings, StepOutput, load_method, methods, register_method
from aag.nets import NetworkSettings
from aag.settings import TrainSettings
from aag.training import DataSettings, Execution, RunSettings, build_encoder, recipe_settings
from aag.training.batches import Batch, Batches
from aag.training.runtime import Runtime
from aag.training.step import Step

EXAMPLES = [
    f"{path}:{name}"
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
    for name in re.findall(r"^class (\w+)\(Method\)", path.read_text(), re.MULTILINE)
]
METHODS = [pytest.param(name, id=Path(name).name) for name in (*methods(), *EXAMPLES)]
IMAGES, N = 1000, 32
every_method = pytest.mark.parametrize("name", METHODS)


@every_method
def test_several_processes_can_train_it(name):
    assert load_method(name).forward is Method.forward  # see `check_processes`


def test_the_package_s_methods_and_the_examples_are_found():
    assert list(methods()) == [
        "aag", "aag-mix", "aag-nn", "aag-relational", "aag-siam", "amdim", "and", "deepcluster", "instance", "isif",
        "moco", "simclr", "super-and",
    ]  # fmt: skip
    assert [Path(name).name for name in EXAMPLES] == ["vicreg.py:VICReg"]


# --- what it says of itself -------------------------------------------------------------------------------------------


@every_method
def test_a_method_states_its_reference_and_recipes_that_resolve(name):
    kind = load_method(name)
    about, reference = (line for line in inspect.getmodule(kind).__doc__.splitlines()[:3] if line)
    assert about.endswith(".")
    assert re.search(r'^\w.*: ".+" \(\d{4}\)', reference)
    assert kind.name
    for recipe in (*kind.recipes, "demo"):
        written = recipe_settings(recipe, "cifar10", name)
        settings = written.resolve("fp32")
        assert settings.resolve("bf16") == settings
        assert "auto" not in settings.options().values()
        assert RunSettings.from_json(settings.to_json()) == settings
        assert RunSettings.from_json(written.to_json()) == written
    assert all(recipe.about and recipe.expect for recipe in kind.recipes.values())


@every_method
def test_its_options_are_explained_and_clash_with_no_other(name):
    own = {field.name for field in fields(load_method(name).settings_type)}
    docs = field_docs(load_method(name).settings_type)
    assert own == docs.keys()
    assert all(len(text.split()) >= 2 for text in docs.values())
    others = {
        field.name for kind in (TrainSettings, NetworkSettings, DataSettings, Execution) for field in fields(kind)
    }
    assert not own & (others | {"data", "recipe", "method", "source"})


def test_a_method_of_one_class_needs_no_more_than_a_loss():
    class Plain(Method):
        """Pulls two views together."""

        def loss(self, embeddings, index):
            return StepOutput((embeddings[0] - embeddings[1]).square().mean())

    assert Plain.name == "plain"
    assert Plain.recipes["plain"].about == "Pulls two views together."
    assert len(Plain().augmentations()) == 2
    assert register_method(Plain) == "plain"
    assert load_method("plain") is Plain


def test_a_docstring_without_words_will_do():
    class Terse(Method):
        """ """

    assert Terse.recipes["terse"].about == "terse"


def test_a_method_cannot_take_the_name_of_one_of_ours():
    class SimCLR(Method):
        pass

    with pytest.raises(AAGError, match=r'has the name of a method of aag, .*; give it another one: name = "my-simclr"'):
        register_method(SimCLR)
    assert load_method("simclr") is methods()["simclr"]
    assert register_method(methods()["simclr"]) == "simclr"


def test_two_files_of_one_name_are_two_methods(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(
            "from dataclasses import dataclass\n"
            "from aag.methods import Method, MethodSettings\n"
            "@dataclass(frozen=True)\nclass S(MethodSettings):\n    pass\n"
            "class Mine(Method):\n    settings_type = S\n"
        )
    first, second = (load_method(f"{tmp_path}/{folder}/mine.py:Mine") for folder in ("a", "b"))
    assert first is not second
    assert load_method(f"{tmp_path}/a/mine.py:Mine") is first
    first(first.settings_type())


# --- what it computes -------------------------------------------------------------------------------------------------


@dataclass
class Made:
    method: Method
    step: Step
    batches: Batches

    def batch(self, step: int = 0) -> Batch:
        return self.batches.batch(0, step)


def make(name: str, photographs: torch.Tensor, seed: int = 0) -> Made:
    """A method ready for its first step, by its recipe for the bundled sample."""
    settings = recipe_settings("demo", "sample", name).replace(width=4, batch_size=N).resolve("fp32")
    torch.manual_seed(seed)
    encoder = build_encoder(settings.replace(seed=seed), ImageSet("photographs", photographs))
    method = settings.method_type(settings.method_settings)
    method.setup(MethodContext(encoder, IMAGES, settings.train))
    method.before_epoch(0, lambda: encoder.encode(photographs))
    step = Step(encoder, method, settings.train, Runtime(torch.device("cpu"), torch.float32))
    return Made(method, step, Batches(photographs, method, N, settings.train.seed))


@every_method
def test_embeddings_have_the_batch_in_dim_1_and_logs_have_names(name, photographs):
    made = make(name, photographs)
    method, encoder, batch = made.method, made.step.encoder, made.batch()
    assert batch.views.shape == (len(method.augmentations()), N, 3, 32, 32)
    assert all(isinstance(augmentation, Augmentation) for augmentation in method.augmentations())
    assert re.fullmatch(r"\d .*views?.*", method.describe_views())
    embeddings = method.embed(encoder, batch.views)
    for part in embeddings if isinstance(embeddings, tuple) else (embeddings,):
        assert part.shape[1] == N
    output = method.loss(embeddings, batch.indices)
    assert output.loss.shape == ()
    assert output.loss.requires_grad
    assert torch.isfinite(output.loss)
    assert len(output.log) == len(method.log_names) == len(set(method.log_names))
    assert all(value.shape == () for value in output.log)
    assert not any(value.requires_grad for value in (*output.log, *output.carry))


@every_method
def test_half_precision_embeddings_are_compared_in_float32(name, photographs):
    made = make(name, photographs)
    batch = made.batch()
    embeddings = made.method.embed(made.step.encoder, batch.views)
    parts = [part.detach().bfloat16() for part in (embeddings if isinstance(embeddings, tuple) else (embeddings,))]
    half, whole = (
        made.method.loss(tuple(cast) if isinstance(embeddings, tuple) else cast[0], batch.indices).loss
        for cast in (parts, [part.float() for part in parts])
    )
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole)


@every_method
def test_a_step_trains_every_parameter(name, photographs):
    made = make(name, photographs)
    trained = made.step.optimizer.parameters
    assert {f"encoder.{key}" for key, _ in made.step.encoder.named_parameters()} <= {
        f"encoder.{key}" for key in trained
    }
    before = {key: value.clone() for key, value in trained.items()}
    made.step(made.batch(), 0.1)
    unreached = [key for key, value in trained.items() if value.grad is None]
    assert not unreached
    changed = sum(not torch.equal(value, before[key]) for key, value in trained.items())
    assert changed > len(trained) / 2  # some start behind a weight of zero


@every_method
def test_its_state_goes_through_a_checkpoint(name, photographs, tmp_path):
    whole, resumed = make(name, photographs), make(name, photographs, seed=1)
    for step in (0, 1):
        whole.step(whole.batch(step), 0.05)
    tensor_files.write(tmp_path / "state", tensor_files.to_row_major(whole.step.state()), {})
    resumed.step.load_state(tensor_files.read(tmp_path / "state")[1])
    for made in (whole, resumed):
        made.statistics = made.step(whole.batch(2), 0.05)
    assert torch.equal(whole.statistics, resumed.statistics)
    state = resumed.step.state()
    assert not [key for key, value in whole.step.state().items() if not torch.equal(value, state[key])]


# --- what a CUDA graph needs, as far as a CPU shows it ----------------------------------------------------------------


class HostReads(TorchDispatchMode):
    """Notes operations whose result depends on a tensor's value: they make the host wait, which no graph can hold."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        by_mask = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if by_mask or name.strip("_") in [each.strip("_") for each in self.NAMES]:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@every_method
def test_a_step_reads_no_value_draws_no_number_and_moves_no_state(name, photographs):
    made = make(name, photographs)
    made.step(made.batch(), 0.05)  # what is made once
    addresses = {key: value.data_ptr() for key, value in made.step.state().items()}
    batch, generator = made.batch(1), torch.get_rng_state()
    with HostReads() as reads:
        output = made.method(made.step.encoder, batch.views, batch.indices)
        output.loss.backward()
        with torch.no_grad():
            made.method.after_step(made.step.encoder, *output.carry)
    assert reads.found == []
    made.method.before_epoch(1, lambda: made.step.encoder.encode(photographs))
    assert torch.equal(torch.get_rng_state(), generator)
    assert {key: value.data_ptr() for key, value in made.step.state().items()} == addresses


# --- options of the basic view ----------------------------------------------------------------------------------------


def test_options_change_the_basic_view():
    settings = MethodSettings(min_crop=0.08, jitter_strength=1.0, blur_kernel=13)
    expected = {"scale": (0.08, 1.0), "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
    assert settings.basic_augmentation() == BasicAugment.preset("paper", **expected, blur_kernel=13)
    assert MethodSettings(jitter_strength=0.5).basic_augmentation() == BasicAugment()
    gray = MethodSettings(grayscale=0.1, blur=0.0).basic_augmentation()
    assert gray == BasicAugment.preset("paper", gray=0.1, blur=0.0)
    assert MethodSettings(basic="simclr", blur=0.5, blur_kernel=5).basic_augmentation().blur_kernel == 5
    assert MethodSettings(basic="simclr", flip=False).basic_augmentation() == BasicAugment.preset("simclr", flip=0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"basic": "crop", "jitter_strength": 1.0}, "--jitter-strength has no effect with --basic crop; leave it out"),
        ({"basic": "simclr", "blur_kernel": 5}, "--blur-kernel has no effect with --basic simclr; leave it out"),
        ({"blur": 0.0, "blur_kernel": 5}, "--blur-kernel has no effect with --blur 0; leave it out"),
        ({"blur_kernel": 4}, "--blur-kernel must be odd, not 4; use 5"),
        ({"min_crop": 0.0}, "--min-crop must be above 0 and at most 1, not 0"),
    ],
)
def test_options_without_an_effect_are_refused(changes, message):
    with pytest.raises(AAGError, match=re.escape(message)):
        MethodSettings(**changes)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_settings_of_another_method_are_refused():
    with pytest.raises(AAGError, match="SimCLR takes SimCLRSettings, not MethodSettings"):
        load_method("simclr")(MethodSettings())


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "Mine", "no such file: .*mine.py; --method takes a name or FILE.py:CLASS"),
        ("x = 1", "Mine", "defines no Method named 'Mine'; it has none"),
        ("from aag.methods import Method", "Mine", "defines no Method named 'Mine'; it has none"),
        ("from aag.methods.simclr import SimCLR", "Simclr", "no Method named 'Simclr'; it has SimCLR"),
        ("import nowhere", "Mine", "cannot import .*mine.py: ModuleNotFoundError: No module named 'nowhere'"),
        ("1 +", "Mine", "cannot import .*mine.py: SyntaxError"),
    ],
)
def test_a_file_without_the_method_is_named(tmp_path, content, name, message):
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    with pytest.raises(AAGError, match=message):
        load_method(f"{tmp_path / 'mine.py'}:{name}")


def test_a_file_needs_the_name_of_its_class():
    with pytest.raises(AAGError, match=r"--method mine.py names a file; add its class, as in mine.py:MyMethod"):
        load_method("mine.py")


def test_views_are_described_by_their_augmentations():
    class Mixed(Method):
        def augmentations(self):
            return BasicAugment(), AutoAugment("cifar10"), BasicAugment()

    assert Mixed().describe_views() == "2 basic views + 1 AutoAugment view"


@pytest.mark.parametrize("output", [lambda loss: loss, lambda loss: StepOutput(loss, (loss.detach(),))])
def test_a_loss_that_returns_something_else_is_named(output, photographs):
    class Odd(Method):
        log_names = ("one", "two")

        def loss(self, embeddings, index):
            return output(embeddings.square().mean())

    made = make("simclr", photographs)
    step = Step(made.step.encoder, Odd(), made.step.settings, made.step.runtime)
    with pytest.raises(AAGError, match=r"Odd\.loss must return a StepOutput that logs 2 numbers"):
        step(made.batch(), 0.1)
    Odd.log_names = ()
    step = Step(made.step.encoder, Odd(), made.step.settings, made.step.runtime)
    with pytest.raises(AAGError, match=r"Odd\.loss must return a StepOutput\(loss\)"):
        step(made.batch(), 0.1)
