"""A dry run: the plan of a run, and how many rows a bought value needs to survive the noise. Nothing is spent.

All of it is public; only the structure of the file is used.
"""

from tacita._counted import counted
from tacita.ledger import Ledger, Session
from tacita.ledger.text_lines import names_in_words
from tacita.ledger.verdict import NEXT_TO_NOTHING, PROMISES_NOTHING
from tacita.tables import rules
from tacita.tables.lean_survey import GROUP_STANDS_OUT
from tacita.tables.models import check_model
from tacita.tables.plan import REFINEMENT, ROWS, SCORE, SURVEY, TRAIN, TablePlan, noise_stds
from tacita.tables.rules import HOLDOUT
from tacita.tables.settings import TableSettings
from tacita.tables.source import check_additive, declared_schema, open_source, read_test, unit_in_words
from tacita.tables.survey import LEAN
from tacita.tables.table import Table
from tacita.tables.table_statement import classes_as_given

MANY = 20  # columns: from here on the dry run advises to declare or drop some; targets: more are not listed


def plan_in_words(settings: TableSettings) -> str:
    """Describe the whole plan of a run, as ``tacita train --dry-run`` prints it; nothing is written or released.

    Raises:
        ValueError: A setting is wrong, or asks for a sweep, which plans several runs.
        DataStructureError: The file's structure is not the declared one.
    """
    if settings.sweep is not None:
        raise ValueError("sweep must be left out of a dry run, which shows the plan of a single training.")
    source = open_source(settings, declared_schema(settings))
    check_additive(settings, source)
    plan = TablePlan.of(settings, source)
    check_model(settings.model)
    test = None if settings.test_file is None else read_test(settings.test_file, source)
    ledger = Ledger(neighboring_relation=settings.neighboring_relation, privacy_unit=unit_in_words(source.schema))
    plan.register(ledger, {}, secure=True)
    target = source.schema.target
    assert target is not None
    task = target.task or ("classification" if target.classes else "regression" if target.complete else None)
    columns = f"{counted(len(source.names), 'column')}, {plan.columns_to_buy} of them bought"
    lines = [
        *plan_warnings(settings.epsilon),
        f"epsilon {settings.epsilon:g} at delta {settings.delta:g} for everything together; the unit: "
        f"{unit_in_words(source.schema)}",
        f"target: {target.column!r}, task: {task or 'bought: give --task to decide it yourself'}; {columns}",
        *classes_as_given(source),
        f"rows: {'bought' if source.schema.rows is None else source.schema.rows}",
        "where the budget goes (noise is given as its standard deviation):",
        *(f"  {_cost(one, plan)}" for one in ledger.sessions),
        *(["  hardened: all noise is drawn as whole steps of a grid"] if plan.form.on_grid else []),
        *([] if test is None else [_test_in_words(test, target.column, settings.test_file)]),
        *what_survives(plan),
        *([plan.noise_in_words] if plan.noise_in_words else []),
        f"training: {settings.model}; " + ", ".join(rules.training(settings).chosen or ("all settings given",)),
        "dry run: nothing was spent, nothing was written",
    ]
    return "".join(f"{line}\n" for line in lines)


def plan_warnings(epsilon: float) -> list[str]:
    """Return what a dry run says, in lines, of the epsilon that it plans, as the verdict of the run will."""
    return [f"CAUTION: {PROMISES_NOTHING}"] * (epsilon >= NEXT_TO_NOTHING)


def _test_in_words(test: Table, column: str, name: str | None) -> str:
    """Say what the exact score will be computed on; the file is declared public, so that it may be quoted."""
    targets, score = test.column(column).texts()[1], f"score: exact, on the {counted(test.num_rows, 'row')} of {name}"
    few = "" if len(targets) > MANY else f", with the targets {names_in_words(map(repr, targets))}"
    return f"{score}{few}: at no cost, outside the guarantee, since you declare the file public"


def _cost(session: Session, plan: TablePlan) -> str:
    """Say what a session is for, its share of the budget, and its noise in the unit of what it adds noise to."""
    noise = " and ".join(f"{value:.3g}" for value in noise_stds(session.event))
    if session.purpose == TRAIN:
        chosen = plan.training
        return (
            f"training, {1 - plan.purchases_share:.0%}: {counted(chosen.queries, 'step')}, each on "
            f"{chosen.sample_rate:.3g} of the rows on average; a row's gradient is cut to a length of "
            f"{chosen.max_grad_norm:g} (max_grad_norm), and noise of {noise} is added to the sum of them"
        )
    what = {
        ROWS: "number of rows and task",
        SURVEY: "types, values and bounds" + (", and the target's values (the last noise)" if plan.buys_target else ""),
        REFINEMENT: "finer bounds of numbers",
        SCORE: f"score, on the {HOLDOUT:.0%} of the rows that the training does not see: at no cost to it",
    }[session.purpose]
    share = "" if session.purpose == SCORE else f", {plan.share(session.event):.1%}"
    return f"{what}{share}: noise of {noise} rows on each count"


def what_survives(plan: TablePlan) -> list[str]:
    """Say how many rows a label, a text and the scale of a number need, with the advice that follows."""
    bought, columns, words = plan.purchases, plan.columns_to_buy, []
    if plan.buys_rows:
        words.append(f"the number of rows will be bought to within about {2 * bought.rows_noise_std():.0f}")
    if plan.buys_target:
        words.append(f"a label needs about {bought.target_threshold():.0f} rows to be seen")
    if columns:
        full, lean = bought.threshold(columns), bought.threshold(columns, histograms=1)
        scale = GROUP_STANDS_OUT * bought.survey_noise_std(columns, 1)
        words.append(
            f"with {counted(columns, 'column')} a text needs about {lean:.0f} rows to be seen ({full:.0f} in a "
            f"table of {LEAN * full:.0f} rows or more), and a number's scale about {scale:.0f} of the same magnitude"
        )
        if columns >= MANY:
            words.append(
                f"fewer than about {2 * scale:.0f} rows leave nothing of so many columns: declare them in a schema "
                "(--schema), or leave out those that do not matter (--drop)"
            )
    return words
