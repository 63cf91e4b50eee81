"""The encoder gives the rows that transformers' towers and an independent projector give."""

import json

import pytest
import torch
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from inference.modelling.families.registry import family_builder
from inference.modelling.vision.encoder import ImageEncoder
from inference.modelling.weights.loader import load_vision
from inference.text.images.decoder import ImageDecoder
from inference.text.images.image_file import read_part
from tests.inference.modelling.harness import read_view
from tests.inference.modelling.vision.specs import spec_of
from tests.inference.modelling.vision.tiny import GEMMA_TILE, MAX_TILES, make_gemma3, make_phi3_v, picture
from tests.inference.text.images.pictures import encoded


@pytest.fixture(scope="module")
def phi3_v(tmp_path_factory):
    return make_phi3_v(tmp_path_factory.mktemp("phi3_v"))


@pytest.fixture(scope="module")
def phi3_v_spec(phi3_v):
    return spec_of(phi3_v.directory)


@pytest.fixture(scope="module")
def phi3_v_encoder(phi3_v, phi3_v_spec):
    return load_vision(phi3_v_spec.vision, [phi3_v.directory / "model.safetensors"], dtype=torch.float32)


def test_the_spec_says_what_the_files_have(phi3_v_spec):
    vision = phi3_v_spec.vision
    assert (vision.tower.num_layers, vision.tower.num_heads, vision.tower.tile) == (2, 2, 56)
    assert (vision.layout.kind, vision.layout.max_tiles, vision.layout.tile_tokens) == ("tiles", MAX_TILES, 2)
    assert set(vision.parameters) == set(vision.parameter_shapes())


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (56, 56), (640, 70), (33, 251), (7, 5)])
def test_rows_of_tiles_are_the_references(phi3_v, phi3_v_encoder, size):
    image = picture(*size)
    decoder = ImageDecoder(phi3_v_encoder.spec.layout)
    try:
        decoded = decoder.decode(read_part(encoded(image), "image"), "image")
    finally:
        decoder.close()
    with torch.inference_mode():
        rows, expected = phi3_v_encoder(torch.from_numpy(decoded.pixels.copy())), phi3_v.rows_of(image)
    assert rows.shape == expected.shape == (decoded.num_tokens, 32)
    assert expected.std() > 0.3
    torch.testing.assert_close(rows, expected, atol=2e-4, rtol=1e-4)


def test_the_order_of_tiles_matters(phi3_v, phi3_v_encoder):
    """The reference isn't blind: another order of a picture's parts gives other rows."""
    image = picture(300, 200)
    with torch.inference_mode():
        assert not torch.allclose(phi3_v.rows_of(image), phi3_v.rows_of(image.rotate(180)), atol=0.1)


@pytest.mark.parametrize("is_of_hub", [True, False])
def test_pooled_rows_are_transformers(tmp_path, is_of_hub):
    model = make_gemma3(tmp_path, is_of_hub=is_of_hub)
    spec = spec_of(tmp_path)
    encoder = load_vision(spec.vision, sorted(tmp_path.glob("*.safetensors")), dtype=torch.float32)
    decoder = ImageDecoder(spec.vision.layout)
    try:
        for size in ((300, 200), (50, 111)):
            decoded = decoder.decode(read_part(encoded(picture(*size)), "image"), "image")
            with torch.inference_mode():
                rows, expected = encoder(torch.from_numpy(decoded.pixels.copy())), model.rows_of(picture(*size))
            assert rows.shape == expected.shape == (decoded.num_tokens, 32)
            torch.testing.assert_close(rows, expected, atol=2e-4, rtol=1e-4)
    finally:
        decoder.close()
    assert spec.vision.sees_whole_image


def test_pixels_are_those_of_transformers_preprocessing(tmp_path):
    """Through the child and the encoder, with the class that transformers has for Gemma 3 without torchvision."""
    make_gemma3(tmp_path)
    vision = spec_of(tmp_path).vision
    processor = Gemma3ImageProcessorPil(size={"height": GEMMA_TILE, "width": GEMMA_TILE})
    decoder, encoder = ImageDecoder(vision.layout), ImageEncoder(vision)
    try:
        for image in (picture(300, 200), picture(40, 90).convert("RGBA"), picture(64, 64).convert("L")):
            decoded = decoder.decode(read_part(encoded(image), "image"), "image")
            expected = processor(images=[image], return_tensors="pt")["pixel_values"][0]
            found = encoder._normalised(torch.from_numpy(decoded.pixels.copy()))
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    finally:
        decoder.close()


def test_what_is_not_read_is_left_out_with_a_warning(tmp_path):
    """A tower of another kind doesn't keep the text from being served."""
    make_gemma3(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "silu"
    view = read_view(tmp_path, config)
    spec = family_builder("gemma3")(view)
    assert spec.vision is None
    assert any(warning.startswith("images aren't read: config.json: hidden_act") for warning in view.facts.warnings)
