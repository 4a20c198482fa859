"""The command line for scripts: `from utils import cli`. The names are defined in the files of this folder."""

from utils.cli.arguments import (
    add_dry_run_argument,
    add_engine_arguments,
    add_log_argument,
    add_price_arguments,
    add_run_arguments,
    add_sampling_arguments,
    add_template_argument,
    add_unranked_argument,
    check_different,
    check_outputs,
    check_shard,
    make_parser,
    prepare_run,
    set_up_logging,
)
from utils.cli.errors import (
    INTERRUPTED,
    LAUNCHED,
    LEAVE_SECONDS,
    RESUME_HINT,
    USER_ERROR,
    UserError,
    describe_missing,
    describe_os_error,
    exit_on_signal,
    is_first_process,
    is_launched,
    report_missing,
    run_script,
)
from utils.cli.flags import (
    Arguments,
    FlagParser,
    api_address,
    at_home,
    fraction,
    non_negative_float,
    non_negative_int,
    positive_int,
    without_link,
)
