"""The command line as the tests call it."""

from mirrormax import commands


def exit_code(*arguments):
    """That of ``mirrormax ARGUMENTS``, however it ends."""
    try:
        return commands.main([str(argument) for argument in arguments])
    except SystemExit as stop:  # what argparse raises
        return stop.code


def refusal(capture, *arguments):
    """The one line on stderr of a command that ends with exit code 2, having printed nothing else."""
    code = exit_code(*arguments)
    out, err = capture.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1, err
    return err
