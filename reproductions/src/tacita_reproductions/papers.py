"""The papers and their experiments: names, titles, places, and what is not reproduced. The list needs no torch.

A new experiment is a function with the arguments that :class:`Experiment` says, and an entry here.
"""

from typing import Any

from tacita_reproductions.runner import Experiment, Paper

THEORY = "(its theory; measured here)"
REAL: dict[str, Any] = {"reads_data": True}
KEPT: dict[str, Any] = {"reads_data": True, "resumes": True}


def _paper(name: str, title: str, entries: tuple[tuple[Any, ...], ...], *not_reproduced: str) -> Paper:
    """Return the paper of ``entries``: name, place in the paper, function, title and, if there are any, flags."""
    experiments = []
    for own, place, run, shows, *flags in entries:
        source = f"{title} {place}" if place == THEORY else f"{title}, {place}"
        more = flags[0] if flags else {}
        experiments.append(Experiment(name=own, title=shows, source=source, run=run, **more))
    return Paper(name=name, title=title, experiments=tuple(experiments), not_reproduced=not_reproduced)


# fmt: off
DP_CLIPPED_SGD = _paper(
    "dp-clipped-sgd",
    "Differentially Private Clipped-SGD: High-Probability Convergence with Arbitrary Clipping Level",
    (
        ("dp-clipped-sgd-floor", THEORY, "dp_clipped_sgd:floor",
         "A fixed threshold leaves a floor that shrinks as the threshold grows."),
        ("dp-clipped-sgd-trade-off", THEORY, "dp_clipped_sgd:trade_off",
         "With privacy the error is a U in the threshold; its bottom moves right with epsilon."),
        ("dp-clipped-sgd-quantiles", THEORY, "dp_clipped_sgd:quantiles",
         "Clipping removes the tail of the error that plain SGD has."),
        ("dp-clipped-sgd-rate", THEORY, "dp_clipped_sgd:rate",
         "A fixed threshold reaches its floor like 1 / sqrt(steps); a growing one has none, but needs more noise."),
        ("dp-clipped-sgd-theorem", THEORY, "dp_clipped_sgd:theorem",
         "The exact theorem holds where it is not vacuous, and is loose."),
        ("dp-clipped-sgd-table-1", "Table 1", "regime_tables:table_1",
         "The best thresholds of Table 1 (convex), a row for each regime, and what is left there."),
        ("dp-clipped-sgd-table-2", "Table 2", "regime_tables:table_2",
         "The best thresholds of Table 2 (non-convex), a row for each regime, and what is left there."),
        ("dp-clipped-sgd-corollary-4-3", "Corollary 4.3", "threshold_claims:corollary_4_3",
         "The best threshold with privacy falls with the root of the dimension, not with the dimension."),
        ("dp-clipped-sgd-koloskova", "the comparison after Table 2", "threshold_claims:koloskova",
         "Beside the bound of Koloskova et al.: where it is smaller, and that the noise terms agree."),
    ),
    "The paper prints no experiments. What can be checked is its theory: tables, corollaries and theorems.",
    "Not checked: the constants of Theorems C.2 and F.2 beyond the one setting of dp-clipped-sgd-theorem; equations "
    "(15) to (23), which rest on the printed thresholds.",
)

NOISY_SGD = _paper(
    "noisy-sgd",
    "Noise is All You Need: Private Second-Order Convergence of Noisy SGD",
    (
        ("noisy-sgd-escape", THEORY, "saddles:escape",
         "Noise leaves a strict saddle; gradient descent without it does not."),
        ("noisy-sgd-private", THEORY, "saddles:private",
         "Private noisy gradient descent leaves the saddle; quality falls with privacy."),
        ("noisy-sgd-large-noise", THEORY, "saddles:large_noise",
         "The bound that replaces clipping fails when the noise is large."),
        ("noisy-sgd-exposed", THEORY, "saddles:exposed",
         "Without clipping one record is exposed."),
        ("noisy-sgd-nominal", "Theorem 3.1 and the settings of Figure 1", "noisy_sgd_noise:nominal",
         "The noise of formula (1): the nominal epsilon of Figures 1 to 3 beside the real one."),
        ("noisy-sgd-figure-1a", "Figure 1(a)", "noisy_sgd_training:figure_1a",
         "Test accuracy of the convolutional network on CIFAR-10, at nominal and real epsilon.", KEPT),
        ("noisy-sgd-figure-1b", "Figure 1(b)", "noisy_sgd_training:figure_1b",
         "Test accuracy of ResNet-18 on CIFAR-10, at nominal and real epsilon.", KEPT),
        ("noisy-sgd-figure-2a", "Figure 2(a)", "noisy_sgd_training:figure_2a",
         "Test accuracy of ResNet-18 on CIFAR-100, at nominal and real epsilon.", KEPT),
        ("noisy-sgd-figure-2b", "Figure 2(b)", "noisy_sgd_training:figure_2b",
         "Test accuracy of a transformer on CoLA, at nominal and real epsilon.", KEPT),
        ("noisy-sgd-figure-3a", "Figure 3(a)", "noisy_sgd_training:figure_3a",
         "Train accuracy of the convolutional network on CIFAR-10, at nominal and real epsilon.", KEPT),
        ("noisy-sgd-figure-3b", "Figure 3(b)", "noisy_sgd_training:figure_3b",
         "Test accuracy of the convolutional network on CIFAR-10, C by Lemma 3.2, at nominal and real epsilon.", KEPT),
    ),
    "The paper's size (2,274,880 parameters, 50,000 images, ten runs of each kind) is what --full runs; the reduced "
    "size has an eighth of the channels, 3,000 records and two runs.",
    "ResNet-18 and BERT are pretrained in the paper. Here ResNet-18, and a small transformer in place of BERT, start "
    "from random weights, because the pretrained ones are not public data of this library: Figures 2(a) and 2(b) "
    "cannot be the paper's.",
    "The paper states neither its batch size, its steps nor the constant c2 of formula (1). They are chosen here, and"
    " c2 is 1, so the real epsilons are those of these settings, not those of the authors' runs.",
)

CLIP21 = _paper(
    "clip21",
    "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy",
    (
        ("clip21-example", "Example 1", "clip21:example_1",
         "Clients that differ: clipped SGD stops anywhere between them, Clip21 does not."),
        ("clip21-figure-1", "Theorem 1 and Figure 1", "clip21:figure_1",
         "Minibatch noise biases Clip21-SGD at every threshold and number of clients; momentum repairs it."),
        ("clip21-thresholds", "Figures 2 and 7", "clip21_logistic:thresholds",
         "Without noise: the gradient norm that each method reaches, against the clipping threshold.", REAL),
        ("clip21-ratios", "Figure 5", "clip21_logistic:noise_ratios",
         "With noise: the gradient norm that each method reaches, at equal noise-clipping ratio.", REAL),
        ("clip21-epsilons", "Figure 5, at equal privacy", "clip21_logistic:equal_epsilon",
         "With noise: the gradient norm that each method reaches, at equal epsilon.", REAL),
        ("clip21-mlp", "Figure 6", "clip21_networks:mlp_losses",
         "With noise, a network with one hidden layer on MNIST: the training loss at each noise-clipping ratio.", REAL),
        ("clip21-cnn", "Figure 6", "clip21_networks:cnn_losses",
         "With noise, a convolutional network on MNIST: the training loss at each noise-clipping ratio.", REAL),
        ("clip21-resnet20", "Figures 3 and 4", "clip21_images:resnet20_accuracies",
         "Without noise, ResNet20 on CIFAR-10: the test accuracy at each threshold.", REAL),
        ("clip21-vgg16", "Figures 3 and 4", "clip21_images:vgg16_accuracies",
         "Without noise, VGG16 on CIFAR-10: the test accuracy at each threshold.", REAL),
    ),
    "The paper's grids and rounds are what --full runs; the reduced size has fewer rounds, seeds and step sizes.",
    "The networks have group normalisation: batch normalisation would couple the rows of a client.",
)

HEAVY_TAILED = _paper(
    "heavy-tailed",
    "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter",
    (
        ("heavy-tailed-rates", "Theorems 31 and 34 on the instance of Theorems 7 and 8; measured here",
         "convex_rates:rates",
         "The excess risk falls with the records as the theory says, faster for larger orders of the moment."),
        ("heavy-tailed-shuffle", "Algorithms 1 and 10; measured here", "convex_rates:shuffle",
         "A mean without a trusted curator costs little more noise than with one."),
        ("heavy-tailed-clipping", "Algorithm 2; measured here", "convex_one_pass:clipping",
         "A threshold from a second moment learns where one for the largest gradient does not."),
        ("heavy-tailed-moments", "Algorithm 2; measured here", "convex_one_pass:moments",
         "Which moment to declare: order 4 beats 2 and 8 on log-normal features."),
        ("heavy-tailed-acceleration", "Algorithm 2; measured here", "convex_one_pass:acceleration",
         "Acceleration pays in one pass over an ill-conditioned problem."),
        ("heavy-tailed-localized", "Algorithm 4; measured here", "convex_structured:not_smooth",
         "Not smooth: the localized method keeps up with one pass on a friendly problem."),
        ("heavy-tailed-lasso", "Algorithm 8; measured here", "convex_structured:lasso",
         "A private lasso has exact zeros."),
    ),
    "The paper prints no experiments: these check its rates and its algorithms on synthetic problems.",
)

DICESGD = _paper(
    "dicesgd",
    "Differentially Private SGD Without Clipping Bias: An Error-Feedback Approach",
    (
        ("dicesgd-mnist", "section 4; measured here", "dicesgd:headline",
         "DiceSGD and clipping at the paper's noise, and at equal real epsilon.", KEPT),
        ("dicesgd-table-2", "Table 2", "dicesgd:table_2",
         "Test accuracy on CIFAR-10 and CIFAR-100, nominal and real epsilon side by side.", KEPT),
        ("dicesgd-figure-2", "Figure 2", "dicesgd_ablations:figure_2",
         "DiceSGD with the paper's noise: accuracy for each pair of thresholds.", KEPT),
        ("dicesgd-figure-3", "Figure 3", "dicesgd_ablations:figure_3",
         "DiceSGD with the paper's noise: accuracy for each threshold and step size.", KEPT),
        ("dicesgd-table-3", "Table 3 and Figure 4", "dicesgd_text:table_3",
         "Generated text and its test loss, nominal and real epsilon side by side.", KEPT),
        ("dicesgd-figure-5", "Figure 5", "dicesgd_text:figure_5",
         "DiceSGD with the paper's noise on text: test loss for each threshold and step size.", KEPT),
        ("error-feedback-one-pass", "beside it: bounded residuals of docs/derivations/dicesgd.md; measured here",
         "one_pass:one_pass",
         "Where error feedback wins at equal epsilon: one pass, no secret sampling."),
    ),
    "The accuracies of Tables 2 and 3 need the pretrained ViT-small and GPT-2. With --full they are taken from --data"
    " FOLDER; the reduced size trains small networks from random weights.",
    "METEOR, a score of Table 3, needs a stemmer and synonyms, and is left out.",
    "The paper does not print which noise its experiments used: here it is that of its Algorithm 4.",
)
# fmt: on

PAPERS = (DP_CLIPPED_SGD, NOISY_SGD, CLIP21, HEAVY_TAILED, DICESGD)  # in the order in which they are listed
