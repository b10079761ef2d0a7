"""Rows of a run's tables that no run made."""

from fedloom.federated.rows import EvaluationRow, RoundRow


def round_row(number: int = 1, loss: float = 0.5) -> RoundRow:
    """Return the row of a round in which nobody took part."""
    return RoundRow(
        round=number,
        seconds=0.0,
        processor_seconds=0.0,
        threads=1,
        cores=1,
        bytes_up=0,
        bytes_up_used=0,
        bytes_down=0,
        train_loss=loss,
        guessing_loss=1.0,
        clients=0,
        updates=[],
        metrics={},
    )


def evaluation_row(number: int = 1, client: int = 2, loss: float = 0.1) -> EvaluationRow:
    """Return the row of a client that answered one image, wrongly."""
    return EvaluationRow(
        round=number,
        client_id=client,
        domain="noise",
        participating=True,
        personalized=False,
        num_test=1,
        num_correct=0,
        loss=loss,
    )
