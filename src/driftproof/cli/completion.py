"""Names for help and shell completion, so that these need not import the library."""

__all__ = ["CORRUPTIONS", "DATA_SETS", "METHODS", "NETWORKS", "SCENES", "SUITES"]

NETWORKS = (
    *("wrn40_2", "wrn28_10", "resnet50", "resnet50_cifar", "resnext29", "wrn10_1", "wrn16_1"),
    *("deeplabv3plus_resnet50", "deeplabv3plus_resnet18", "deeplabv3plus_small"),
)

_SELECTION_METHODS = (
    *("gce", "conjugate", "ent", "tent", "eata", "swr", "cotta"),
    *("sar", "rdumb", "come", "roid", "cmf", "deyo", "asr", "rotta", "sotta", "stamp", "paf_kip", "sentinel"),
)
_OUTPUT_METHODS = ("lame", "memo", "norm_ema", "t3a", "ttaug")
METHODS = (
    *("adapt", "source", "bn_adapt", "ttn"),
    *_OUTPUT_METHODS,
    *_SELECTION_METHODS,
    *(f"{name}+crowd" for name in _SELECTION_METHODS),
    *("tent+unient", "tent+unient_plus", "eata+unient"),
)

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    *("speckle_noise", "gaussian_blur", "spatter", "saturate"),
)

SCENES = ("cityscapes", "bdd100k", "mapillary", "gtav", "synthia", "camvid")
DATA_SETS = (
    *("cifar10", "cifar100", "cifar10-c", "cifar100-c", "svhn"),
    *("tiny-imagenet", "tiny-imagenet-c", "imagenet-c", "imagenet-o", "imagenet"),
    *SCENES,
)

SUITES = (
    *("table1", "table2", "table3", "table4", "table5", "table6", "table7", "table8"),
    *("s1", "s2", "s3", "s3b", "s4", "s5"),
    *("camvid", "camvid_x10", "camvid_x100", "camvid_x1000", "camvid_parts", "camvid_rates"),
    *("rules", "gradients", "open_choices", "endurance", "milder"),
    *("openset", "openset_long", "openset_seeds", "openset_shares", "openset_near"),
    *("openset_small", "openset_single", "openset_costs", "openset_anchors"),
    *("paf_kip_parts", "sentinel_search", "sentinel", "sentinel_streams"),
)
