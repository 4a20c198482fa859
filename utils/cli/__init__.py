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
from utils.cli.ending import INTERRUPTED, LEAVE_SECONDS, RESUME_HINT, exit_on_signal, report_missing, run_script
from utils.cli.errors import UserError, describe_missing, describe_os_error
from utils.cli.flags import (
    LAUNCHED,
    USER_ERROR,
    Arguments,
    FlagParser,
    api_address,
    at_home,
    fraction,
    is_first_process,
    is_launched,
    non_negative_float,
    non_negative_int,
    positive_int,
    without_link,
)
