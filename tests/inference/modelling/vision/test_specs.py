"""A stored part that sees gives the text side what it needs, without torch."""

import json
import subprocess
import sys

from inference.modelling.specs.parts import NormSpec
from inference.modelling.vision.specs import PooledProjectorSpec, TileProjectorSpec, TowerSpec, VisionSpec, image_input
from inference.values.images import ImageLayout, ImagePrompt

TOWER = TowerSpec(8, 16, 2, 1, 28, 14, "gelu_tanh", NormSpec("layer", 1e-6))
LAYOUT = ImageLayout("square", 28, 1)
PROMPT = ImagePrompt("<image_soft_token>", "<start_of_image>", "\n\n<start_of_image>", "<end_of_image>\n\n")


def make(projector) -> VisionSpec:
    return VisionSpec(4, TOWER, projector, LAYOUT, PROMPT, (0.5,) * 3, (0.5,) * 3)


def test_shapes_and_numbers():
    shapes = make(PooledProjectorSpec(NormSpec("rms", offset=1.0))).parameter_shapes()
    assert shapes["tower.patch_embedding.weight"] == (8, 588) and shapes["tower.position_embedding"] == (4, 8)
    assert shapes["projector.projection.weight"] == (4, 8) and "tower.class_embedding" not in shapes
    tiled = make(TileProjectorSpec())
    assert tiled.parameter_shapes()["projector.line_end"] == (32,)
    layer = 3 * 64 + 24 + 64 + 8 + 16 * 8 + 16 + 8 * 16 + 8 + 4 * 8
    projector = 2 * 32 + 4 * 32 + 4 + 16 + 4
    assert tiled.num_parameters() == 8 * 588 + 8 + 32 + layer + projector


def test_what_is_stored_is_read_without_the_whole_spec():
    from inference.modelling.spec_json import encode

    stored = json.loads(json.dumps(encode(make(TileProjectorSpec()))))
    found = image_input(stored)
    assert (found.layout, found.prompt) == (LAYOUT, PROMPT)
    assert image_input(None) is None


def test_reading_images_needs_no_torch_and_no_decoder():
    code = (
        "import sys, inference.text.images.parts, inference.text.images.placing, inference.modelling.vision.specs;"
        "print([name for name in ('torch', 'PIL', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
