"""Classes of transformers with something like a ViT in them, each made small by the fields of its configuration.

The files of most are of no family of this package. They show that none is taken for a ViT that it is not.
"""

import contextlib
import re

LAYERS, WIDTH, HEADS, MLP, PIXELS, PATCH, WORDS = 2, 192, 3, 256, 32, 8, 99
LARGEST = 100e6
"""Parameters; a class whose fields are named otherwise may come out larger."""

_TEXT = """
Aimv2VisionModel Aimv2Model AlignVisionModel AltCLIPVisionModel AltCLIPModel
BeitForMaskedImageModeling BeitForSemanticSegmentation BeitModel BeitBackbone
BlipVisionModel BlipModel BlipForConditionalGeneration BlipForImageTextRetrieval BlipForQuestionAnswering
Blip2VisionModel Blip2VisionModelWithProjection Blip2ForImageTextRetrieval BridgeTowerModel
ChineseCLIPVisionModel ChineseCLIPModel CLIPModel CLIPVisionModel CLIPSegModel CLIPSegVisionModel
CLIPSegForImageSegmentation CvtForImageClassification
Data2VecVisionModel Data2VecVisionForSemanticSegmentation DeepseekOcr2VisionModel DeiTModel DeiTForMaskedImageModeling
DepthAnythingForDepthEstimation Dinov2Model Dinov2Backbone Dinov2WithRegistersModel Dinov2WithRegistersBackbone
DINOv3ViTBackbone Dots3NoteVisionModel DPTModel DPTForDepthEstimation DPTForSemanticSegmentation
EomtForUniversalSegmentation EomtDinov3ForUniversalSegmentation FlavaImageModel FlavaModel
Gemma4VisionModel GitVisionModel GitModel GlmImageVisionModel GraniteDoclingVisionModel GroupViTVisionModel
GroupViTModel HieraForImageClassification HunYuanVLVisionTransformer Idefics2Model Idefics3VisionTransformer
IJepaModel InklingVisionModel InstructBlipVisionModel InstructBlipVideoVisionModel InternVLVisionModel JanusVisionModel
Kimi_K25VisionModel Kosmos2Model Kosmos2_5Model LlavaForConditionalGeneration LevitForImageClassification
LwDetrViTBackbone MetaClip2VisionModel MetaClip2VisionModelWithProjection MetaClip2Model MgpstrModel
MgpstrForSceneTextRecognition MiniCPMOcrVisionModel MLCDVisionModel MuseGlimmerVisionModel MuseSparkVisionModel
Owlv2VisionModel Owlv2Model Owlv2ForObjectDetection OwlViTVisionModel OwlViTModel OwlViTForObjectDetection
PaddleOCRVisionModel PeVideoEncoder Phi4MultimodalVisionModel PixioModel PixioBackbone PixtralVisionModel
PvtForImageClassification QianfanOCRVisionModel RadioModel RfDetrDinov2Backbone
SamVisionModel SamModel SamHQVisionModel Sam3ViTModel Sapiens2Model Sapiens2Backbone SegformerForImageClassification
SegGptModel SiglipModel Siglip2VisionModel Siglip2Model Siglip2ForImageClassification SmolVLMVisionTransformer
Step3p7VisionModel SwinForImageClassification Swinv2ForImageClassification TimesformerModel
TimesformerForVideoClassification Tipsv2VisionModel Tipsv2Model Tipsv2VisionBackbone UnlimitedOcrVisionModel
VideoLlama3VisionModel VideoMAEModel VideoMAEForPreTraining VideoMAEForVideoClassification VideoPrismVisionModel
ViltModel VisionTextDualEncoderModel ViTForMaskedImageModeling ViTMAEModel ViTMAEForPreTraining ViTMSNModel
VitDetModel VitDetBackbone VitPoseBackbone VitPoseForPoseEstimation VitMatteForImageMatting VivitModel
VivitForVideoClassification VJEPA2Model VJEPA2ForVideoClassification XCLIPVisionModel XCLIPModel YolosModel
YolosForObjectDetection ZoeDepthForDepthEstimation
"""
NAMES = _TEXT.split()
_SIZES = {
    r"(\w*_)?(hidden_size|embed_dim|d_model|hidden_dim|embedding_dim)|dim": WIDTH,
    r"(\w*_)?(num_hidden_layers|num_layers|n_layers|depth|encoder_layers|decoder_layers)": LAYERS,
    r"(\w*_)?(num_attention_heads|num_heads|attention_heads|num_key_value_heads|n_heads)": HEADS,
    r"(\w*_)?(intermediate_size|mlp_dim|ffn_dim|dim_feedforward|mlp_hidden_size)": MLP,
    r"head_dim": WIDTH // HEADS,
    r"(\w*_)?(image_size|img_size|crop_size)": PIXELS,
    r"(\w*_)?patch_size": PATCH,
    r"mlp_ratio": 2,
    r"mask_ratio": 0,
    r"num_patches": (PIXELS // PATCH) ** 2,
    r"vocab_size": WORDS,
    r"projection_dim": 16,
    r"max_position_embeddings": 64,
    r"num_frames": 2,
}
_TOWERS = ("vision_model", "vision_tower", "image_model", "backbone")  # names of a tower in a larger model
_LEFT_OUT = ("out_features", "out_indices", "stage_names", "backbone_out_indices", "_name_or_path")


def small(fields):
    """Return the fields of a configuration with small sizes, those of configurations inside of it too."""
    found, layers = {}, fields.get("num_hidden_layers")
    for name, value in fields.items():
        size = next((size for pattern, size in _SIZES.items() if re.fullmatch(pattern, name)), None)
        if name in _LEFT_OUT:
            continue
        if isinstance(value, dict):
            found[name] = small(value) if name.endswith("config") else value
        elif name.endswith("token_id") and isinstance(value, int):
            found[name] = min(value, 2)
        elif isinstance(value, list) and len(value) == layers:
            found[name] = value[:LAYERS]
        elif size is None or value is None or isinstance(value, bool):
            found[name] = value
        else:
            found[name] = [size] * len(value) if isinstance(value, (list, tuple)) else type(value)(size)
    return found


def build(name, classes):
    """Return a model of a class, with its configuration made small.

    Raises:
        ValueError: It is still too large.
    """
    import torch
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class
    if name == "VisionTextDualEncoderModel":
        towers = transformers.ViTConfig(**small(transformers.ViTConfig().to_dict())), transformers.BertConfig()
        config = config.from_vision_text_configs(towers[0], transformers.BertConfig(**small(towers[1].to_dict())))
    else:
        config = config.from_dict(small(config().to_dict()), num_labels=classes)
    with torch.device("meta"):
        parameters = sum(array.numel() for array in kind(config).parameters())
    if parameters > LARGEST:
        raise ValueError(f"{name} has {parameters:,} parameters")
    return kind(config)


def outputs(model, images):
    """Yield what a model says of pictures: its outputs, or where it also wants a text, its features.

    Of tokens these are all, the first, and the mean over all and over all but the first. A backbone gives maps of its
    tokens; what it computed of all tokens is what its last normalization gave.
    """
    import torch

    seen = []
    parts = [part for name, part in model.named_modules() if name.rpartition(".")[2] in _TOWERS]
    parts += [] if model.base_model is model else [model.base_model]
    for norm in {child for part in (model, *parts) for child in part.children()}:
        if isinstance(norm, torch.nn.LayerNorm):
            norm.register_forward_hook(lambda part, given, found: seen.append(found))

    calls = [
        model,
        *parts,
        *(part.get_image_features for part in (model, *parts) if hasattr(part, "get_image_features")),
    ]
    given = {"pixel_values": images}
    if "Siglip2" in type(model).__name__:
        rows = images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # batch, channels, down, across, pixels, pixels
        rows = rows.permute(0, 2, 3, 4, 5, 1).reshape(1, -1, PATCH * PATCH * 3)
        grid = torch.tensor([[PIXELS // PATCH] * 2])
        given = {"pixel_values": rows, "pixel_attention_mask": torch.ones(rows.shape[:2]), "spatial_shapes": grid}
    for call in calls:
        with torch.no_grad(), contextlib.suppress(Exception):
            found = call(**given)
            arrays = found.values() if hasattr(found, "values") else [found]
            for array in (*arrays, *seen):
                if not isinstance(array, torch.Tensor):
                    continue
                yield array.numpy()
                if array.ndim == 3 and hasattr(model, "vision_proj"):  # BLIP's retrieval compares what this gives
                    yield model.vision_proj(array[:, 0]).numpy()
                if array.ndim == 3:
                    yield from (array[:, 0].numpy(), array.mean(1).numpy(), array[:, 1:].mean(1).numpy())
