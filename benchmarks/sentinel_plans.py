"""What `sentinel_research.py` runs, in order of importance."""

from dataclasses import replace

from sentinel_jobs import VIEWS, Learner, Sentinel

_BASE = Learner("base")
_SECOND = Learner("second", sentinel="flip", alpha=(0.3, 0.3), lr=1e-3, pull=1e-2)
_CHOSEN = replace(_SECOND, name="chosen", known="all")
_ALL = replace(_SECOND, name="all", scope="all", lr=1e-4)
_BLENDED = Sentinel("blend0.3", view="flip", alpha=0.3)
_STILL = replace(_BLENDED, momentum=1.0)
_FOURTH = replace(_CHOSEN, name="lambda0.5", sentinel="blend0.3")
_PRESENT = replace(_FOURTH, name="present", sentinel="still")
_ALONE = replace(_PRESENT, sentinel="none")
_DEFAULT = replace(_ALONE, name="default", weighted=True, views=("shift",))
_SEEN = replace(_DEFAULT, views=VIEWS)
_OWN_ALPHA = replace(_DEFAULT, name="alpha0.4", alpha=(0.4, 0.4), frozen_alpha=(0.3, 0.3))
_GROWING = replace(_OWN_ALPHA, name="growing", alpha=(0.1, 0.5))
_DETECTOR = replace(_STILL, name="default", pull=2e-3, open_only=True)
_MIXED = replace(_DEFAULT, alpha=(0.2, 0.5))
_STEADY = replace(_MIXED, scope="all", pull=1e-3, eps=1e-2)
_EARLY = replace(_STEADY, scope="early")
_GENTLE = replace(_EARLY, lr=3e-4, pull=3e-3)
_GROWN = replace(_DETECTOR, alpha=(0.2, 0.5))
_PAIRS = {
    f"{first}-{last}": (first, last) for first, last in ((0.1, 0.5), (0.2, 0.4), (0.2, 0.5), (0.2, 0.6), (0.3, 0.5))
}

PLANS = {
    "dry": {
        "sentinels": [Sentinel("batch"), Sentinel("crop", view="crop", guard=True), Sentinel("flip", view="flip")],
        "learners": [
            _BASE,
            replace(_BASE, name="ens", loss="ens", sentinel="flip", momentum=0.99),
            replace(
                _BASE, name="all_params", scope="all", lr=3e-5, loss="slr", weighted=True, first="flip", second="none"
            ),
            replace(_BASE, name="masked", masked=True, known="guarded"),
            replace(_BASE, name="alone", sentinel="none", alpha=(0.7, 0.3)),
        ],
    },
    "first": {
        "sentinels": [
            Sentinel("batch"),
            Sentinel("blend", alpha=0.5),
            Sentinel("flip", view="flip"),
            Sentinel("crop", view="crop"),
            Sentinel("pulled", pull=1e-3),
            Sentinel("no_teacher", teacher=False),
            Sentinel("guarded", guard=True),
            Sentinel("repel1", repel=1.0),
        ],
        "before_other_sentinels": 9,
        "learners": [
            _BASE,
            replace(_BASE, name="all_3e-5", scope="all", lr=3e-5),
            replace(_BASE, name="ens_1e-3", loss="ens", lr=1e-3),
            replace(_BASE, name="lr1e-3_pull1e-2", lr=1e-3, pull=1e-2),
            replace(_BASE, name="alpha0.3", alpha=(0.3, 0.3)),
            replace(_BASE, name="alpha0.7", alpha=(0.7, 0.7)),
            replace(_BASE, name="all_1e-4_pull1e-2", scope="all", lr=1e-4, pull=1e-2),
            replace(_BASE, name="slr", loss="slr"),
            replace(_BASE, name="all_known_no_diff", diff=False),
            replace(_BASE, name="no_sentinel", known="all"),
            replace(_BASE, name="all_ens_1e-4", scope="all", lr=1e-4, loss="ens"),
            replace(_BASE, name="alpha0.7-0.3", alpha=(0.7, 0.3)),
            replace(_BASE, name="alpha0.3-0.7", alpha=(0.3, 0.7)),
            replace(_BASE, name="nothing", known="all", diff=False),
            replace(_BASE, name="attract", known="attract"),
            replace(_BASE, name="guarded", known="guarded"),
            replace(_BASE, name="below_cut", known="below_cut"),
            replace(_BASE, name="weighted", weighted=True),
            replace(_BASE, name="no_mean_entropy", mean_entropy=0.0),
            replace(_BASE, name="ens_sharp", loss="ens", lr=1e-3, temperature=0.5),
            replace(_BASE, name="average", momentum=0.99),
            replace(_BASE, name="lr1e-3_pull3e-3", lr=1e-3, pull=3e-3),
            replace(_BASE, name="masked", masked=True),
        ],
    },
    "second": {
        "sentinels": [
            Sentinel("flip", view="flip"),
            Sentinel("no_teacher", view="flip", teacher=False, open_only=True),
            Sentinel("blend0.3", view="flip", alpha=0.3, open_only=True),
            Sentinel("crop", view="crop", open_only=True),
            Sentinel("repel1", view="flip", repel=1.0, open_only=True),
            Sentinel("lr2e-3", view="flip", lr=2e-3, open_only=True),
            Sentinel("momentum0.99", view="flip", momentum=0.99, open_only=True),
            Sentinel("batch", open_only=True),
            Sentinel("blend0.6", view="flip", alpha=0.6, open_only=True),
        ],
        "before_other_sentinels": 11,
        "learners": [
            _SECOND,
            _ALL,
            replace(_ALL, name="all_ens", loss="ens", diff=False),
            replace(_SECOND, name="ens_sharp", loss="ens", temperature=0.5, diff=False),
            replace(_ALL, name="all_below_cut", known="below_cut"),
            replace(_ALL, name="all_average", momentum=0.99),
            replace(_SECOND, name="smooth", smooth=0.9),
            replace(_SECOND, name="lambda0.1", mean_entropy=0.1),
            replace(_SECOND, name="no_sentinel", known="all"),
            replace(_SECOND, name="below_cut", known="below_cut"),
            replace(_ALL, name="all_slr", loss="slr"),
            replace(_SECOND, name="alpha0.5-0.1", alpha=(0.5, 0.1)),
            replace(_SECOND, name="alpha0.1-0.5", alpha=(0.1, 0.5)),
            replace(_ALL, name="all_cross", loss="cross", first="flip", second="none", momentum=0.99, diff=False),
            replace(_SECOND, name="known_alone", diff=False),
            replace(_SECOND, name="no_lambda", mean_entropy=0.0),
            replace(_SECOND, name="nothing", known="all", diff=False),
            replace(_ALL, name="all_crop_first", first="crop", second="none"),
            replace(_SECOND, name="slow", lr=3e-4),
            replace(_SECOND, name="attract", known="attract"),
            replace(_SECOND, name="slr", loss="slr"),
            replace(_SECOND, name="crop_second", second="crop"),
            replace(_SECOND, name="alpha0.2", alpha=(0.2, 0.2)),
            replace(_SECOND, name="alpha0.4", alpha=(0.4, 0.4)),
            replace(_ALL, name="all_3e-4", lr=3e-4, pull=3e-2),
            replace(_SECOND, name="weighted", weighted=True),
            replace(_SECOND, name="masked0.5", alpha=(0.5, 0.5), masked=True),
        ],
    },
    "third": {
        "sentinels": [
            Sentinel("flip", view="flip"),
            Sentinel("momentum0.99", view="flip", momentum=0.99, open_only=True),
            Sentinel("no_teacher", view="flip", teacher=False, open_only=True),
            Sentinel("blend0.3", view="flip", alpha=0.3, open_only=True),
            Sentinel("crop", view="crop", open_only=True),
            Sentinel("repel1", view="flip", repel=1.0, open_only=True),
            Sentinel("batch", open_only=True),
        ],
        "before_other_sentinels": 3,
        "learners": [
            replace(_SECOND, name="known_alone", diff=False),
            replace(_CHOSEN, name="chosen_lambda0.1", mean_entropy=0.1),
            replace(_CHOSEN, name="chosen_average", momentum=0.99),
            replace(_CHOSEN, name="chosen_ens_sharp", loss="ens", temperature=0.5, diff=False),
            replace(_CHOSEN, name="chosen_alpha0.4", alpha=(0.4, 0.4)),
            replace(_SECOND, name="nothing", known="all", diff=False),
        ],
    },
    "fourth": {
        "sentinels": [
            _BLENDED,
            replace(_BLENDED, name="frozen_average", momentum=1.0),
            replace(_BLENDED, name="crop", view="crop"),
            replace(_BLENDED, name="crop_frozen_average", view="crop", teacher_view="none", momentum=1.0),
            replace(_BLENDED, name="repel4", repel=4.0, open_only=True),
            replace(_BLENDED, name="image", view="none", open_only=True),
            replace(_BLENDED, name="lr2e-3", lr=2e-3, open_only=True),
            replace(_BLENDED, name="threshold0.3", threshold=0.3, open_only=True),
            replace(_BLENDED, name="blend0.2", alpha=0.2, open_only=True),
            replace(_BLENDED, name="frozen_average_repel4", momentum=1.0, repel=4.0, open_only=True),
        ],
        "before_other_sentinels": 3,
        "learners": [
            replace(_FOURTH, name="lambda0.1", mean_entropy=0.1),
            _FOURTH,
            replace(_FOURTH, name="lambda0.1_frozen_average", sentinel="frozen_average", mean_entropy=0.1),
            replace(_FOURTH, name="surer_mean", spread="below_cut"),
            replace(_FOURTH, name="lambda0.25", mean_entropy=0.25),
            replace(_FOURTH, name="all_lambda0.1", diff=False, mean_entropy=0.1),
            replace(_FOURTH, name="below_cut", known="below_cut", mean_entropy=0.1),
            replace(_FOURTH, name="lr5e-4", lr=5e-4, mean_entropy=0.1),
        ],
    },
    "long": {
        "sentinels": [_BLENDED, replace(_BLENDED, name="pulled", pull=1e-3)],
        "before_other_sentinels": 1,
        "learners": [replace(_FOURTH, name="lambda0.1", mean_entropy=0.1)],
    },
    "fifth": {
        "sentinels": [
            replace(_STILL, name="pull0"),
            replace(_STILL, name="pull1e-3", pull=1e-3),
            replace(_STILL, name="pull2e-3", pull=2e-3),
            replace(_STILL, name="pull5e-3", pull=5e-3),
        ],
        "learners": [],
    },
    "sixth": {
        "sentinels": [replace(_STILL, name="still"), replace(_STILL, name="pulled", pull=2e-3)],
        "learners": [
            _PRESENT,
            replace(_PRESENT, name="lr2e-3", lr=2e-3),
            replace(_PRESENT, name="pulled", sentinel="pulled"),
            replace(_PRESENT, name="weighted", weighted=True),
            replace(_PRESENT, name="lr2e-3_pull2e-2", lr=2e-3, pull=2e-2),
            replace(_PRESENT, name="window400", window=400),
            replace(_PRESENT, name="lambda1", mean_entropy=1.0),
            replace(_PRESENT, name="lr2e-3_weighted", lr=2e-3, weighted=True),
            replace(_PRESENT, name="pull5e-3", pull=5e-3),
            replace(_PRESENT, name="lr4e-3_pull4e-2", lr=4e-3, pull=4e-2),
        ],
    },
    "seventh": {
        "sentinels": [],
        "learners": [
            replace(_ALONE, views=("shift",)),
            replace(_ALONE, name="weighted", weighted=True, views=("shift",)),
            replace(_ALONE, name="frozen0.1-0.5", frozen_alpha=(0.1, 0.5), views=("shift",)),
            replace(_ALONE, name="weighted_frozen0.1-0.5", weighted=True, frozen_alpha=(0.1, 0.5), views=("shift",)),
        ],
    },
    "eighth": {
        "sentinels": [],
        "learners": [
            _DEFAULT,
            replace(_DEFAULT, name="all_samples", diff=False),
            _OWN_ALPHA,
            replace(_DEFAULT, name="lambda0.25", mean_entropy=0.25),
            replace(_DEFAULT, name="lambda1", mean_entropy=1.0),
            replace(_DEFAULT, name="all_samples_lambda1", diff=False, mean_entropy=1.0),
            replace(_GROWING, name="alpha0.1-0.5"),
            replace(_DEFAULT, name="ens_sharp", loss="ens", temperature=0.5, diff=False),
            replace(_DEFAULT, name="ens_sharp_diff", loss="ens", temperature=0.7),
            replace(_DEFAULT, name="pull5e-3", pull=5e-3),
            replace(_DEFAULT, name="no_lambda", mean_entropy=0.0),
        ],
    },
    "ninth": {
        "sentinels": [],
        "learners": [
            _GROWING,
            replace(_GROWING, name="growing_all_samples", diff=False),
            replace(_GROWING, name="growing_all_samples_lambda1", diff=False, mean_entropy=1.0),
            replace(_GROWING, name="growing_lambda1", mean_entropy=1.0),
            replace(_DEFAULT, name="taught", loss="labels", mean_entropy=0.0),
            replace(_GROWING, name="growing_pull5e-3", pull=5e-3),
            replace(_GROWING, name="growing_all_samples_pull5e-3", diff=False, pull=5e-3),
            replace(_GROWING, name="growing_both", frozen_alpha=(0.2, 0.4)),
            replace(_DEFAULT, name="taught_everything", loss="labels", mean_entropy=0.0, scope="all", lr=1e-4),
            replace(_GROWING, name="steeper", alpha=(0.0, 0.6)),
            _DEFAULT,
        ],
    },
    "tenth": {  # the same shares in the learner, the frozen network and the sentinel, and every view of an answer
        "sentinels": [_DETECTOR, *(replace(_DETECTOR, name=name, alpha=pair) for name, pair in _PAIRS.items())],
        "learners": [_SEEN, *(replace(_SEEN, name=name, alpha=pair) for name, pair in _PAIRS.items())],
    },
    "eleventh": {  # with a large eps Adam's steps are as large as the gradients, where these are small
        "sentinels": [],
        "learners": [
            replace(_MIXED, name="0.2-0.5"),
            replace(_MIXED, name="pull1e-3", pull=1e-3),
            replace(_STEADY, name="all_1e-4", lr=1e-4),
            replace(_STEADY, name="all_3e-4", lr=3e-4),
            replace(_STEADY, name="all_1e-3"),
            replace(_STEADY, name="all_3e-3", lr=3e-3),
            replace(_STEADY, name="all_1e-3_pull3e-3", pull=3e-3),
            replace(_STEADY, name="all_3e-3_pull1e-2", lr=3e-3, pull=1e-2),
            replace(_STEADY, name="affine_1e-2", scope="affine", lr=1e-2),
            replace(_STEADY, name="early_1e-3", scope="early"),
            replace(_STEADY, name="all_1e-4_eps1e-3", lr=1e-4, eps=1e-3),
            replace(_STEADY, name="all_3e-4_lambda1", lr=3e-4, mean_entropy=1.0),
            replace(_STEADY, name="all_3e-4_all_samples", lr=3e-4, diff=False),
            replace(_STEADY, name="all_3e-4_equal", lr=3e-4, weighted=False),
        ],
    },
    "twelfth": {
        "sentinels": [],
        "learners": [
            replace(_EARLY, name="early"),
            replace(_EARLY, name="early_0.3", alpha=(0.3, 0.3)),
            _DEFAULT,
            replace(_EARLY, name="early_5e-4", lr=5e-4),
            replace(_EARLY, name="earlier", scope="earlier"),
            replace(_EARLY, name="early_lambda1", mean_entropy=1.0),
            replace(_EARLY, name="early_pull3e-3", pull=3e-3),
            replace(_EARLY, name="half", scope="half"),
        ],
    },
    "thirteenth": {
        "sentinels": [],
        "learners": [
            replace(_STEADY, name="affine_5e-4", scope="affine", lr=5e-4),
            replace(_EARLY, name="early_5e-4_lambda1", lr=5e-4, mean_entropy=1.0),
            replace(_STEADY, name="affine_1e-3", scope="affine"),
            replace(_EARLY, name="earlier_5e-4", scope="earlier", lr=5e-4),
            replace(_STEADY, name="affine_2e-3", scope="affine", lr=2e-3),
            replace(_EARLY, name="early_3e-4", lr=3e-4),
            replace(_STEADY, name="affine_1e-3_eps1e-3", scope="affine", eps=1e-3),
            replace(_EARLY, name="early_5e-4_pull3e-3", lr=5e-4, pull=3e-3),
        ],
    },
    "shares": {
        "sentinels": [_DETECTOR, replace(_GROWN, name="0.2-0.5")],
        "learners": [],
    },
    "late": {
        "sentinels": [
            replace(_GROWN, name="0.2-0.5"),
            replace(_GROWN, name="late2/3", layers=2 / 3),
            replace(_GROWN, name="late1/3", layers=1 / 3),
            replace(_GROWN, name="late1/3_lr2e-3", layers=1 / 3, lr=2e-3),
        ],
        "learners": [],
    },
    "fourteenth": {
        "sentinels": [],
        "learners": [
            replace(_GENTLE, name="gentle_earlier", scope="earlier"),
            replace(_GENTLE, name="gentle_early"),
            replace(_GENTLE, name="gentle_fifth", scope="fifth"),
            replace(_GENTLE, name="gentle_early_lambda1", mean_entropy=1.0),
            replace(_GENTLE, name="gentle_middle", scope="middle"),
            replace(_GENTLE, name="gentle_earlier_lambda1", scope="earlier", mean_entropy=1.0),
        ],
    },
    "long_pull": {
        "sentinels": [replace(_STILL, name="pull0"), replace(_STILL, name="pull2e-3", pull=2e-3)],
        "learners": [],
    },
    "final": {
        "sentinels": [Sentinel("flip", view="flip")],
        "learners": [_CHOSEN],
    },
}
