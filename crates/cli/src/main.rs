//! `leeward`, the one binary: parses arguments, and calls the crate that does the work.
//!
//! - [`command_line`], [`args`]: what a user types.
//! - [`serve`]: one node.
//! - [`dev`]: a cluster of child processes on this machine, which `leeward_operate::dev` supervises.
//! - `bench`: the benchmark, with a cluster of its own if asked.
//! - [`status`], [`watch`], [`moves`], [`join`], [`data`], [`table`], [`user`], [`ingest`]: small clients.
//! - [`inspect`]: a volume that no node runs on.
//!
//! Results go to the standard output, everything else to the standard error. The exit code is 0 for success, 1 for
//! "no" (a key that does not exist, a benchmark that found errors) and 2 for a failure.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod certs;
mod command_line;
mod config;
mod data;
mod dev;
mod ingest;
mod inspect;
mod join;
mod log;
mod merge;
mod moves;
mod replicas;
mod restart;
mod restore;
mod serve;
mod signals;
mod split;
mod status;
mod table;
mod text;
mod user;
mod wait;
mod watch;

use clap::Parser;
use command_line::{Cli, Command};
use leeward_bench::BenchError;
use leeward_client::{ClientError, OpError};
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// The result of a subcommand: whether the answer is "yes".
type Outcome = Result<bool, Box<dyn Error>>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = signals::survive_file_size_limit() {
        return failed(&format!("SIGXFSZ cannot be handled: {error}"));
    }
    let filter = cli.log.as_deref().unwrap_or(match cli.command {
        Command::Serve(_) => "info",
        _ => "warn",
    });
    if let Err(error) = start_logging(filter) {
        return failed(&format!("--log {filter}: {error}"));
    }
    let outcome = match cli.command {
        Command::Dev(args) => dev::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Status(args) => match args.watch {
            Some(seconds) => watch::run(&args, Duration::from_secs(seconds.into())),
            None => status::run(&args),
        },
        Command::Bench(args) => bench::run(&args),
        Command::Get(args) => data::get(&args),
        Command::Put(args) => data::put(&args),
        Command::Del(args) => data::del(&args),
        Command::Scan(args) => data::scan(&args),
        Command::Count(args) => data::count(&args),
        Command::Table(args) => table::run(&args.command),
        Command::Checkpoint(args) => ingest::checkpoint(&args),
        Command::Ingest(args) => ingest::ingest(&args),
        Command::Move(args) => moves::move_copy(&args),
        Command::Drain(args) => moves::drain(&args),
        Command::Join(args) => join::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Certs(args) => certs::run(&args.command),
        Command::User(args) => user::run(&args.command),
        Command::Split(args) => split::split(&args),
        Command::Merge(args) => merge::merge(&args),
        Command::AcceptLoss(args) => data::accept_loss(&args),
        Command::RestoreCoordinator(args) => restore::restore(&args),
        Command::Rekey(args) => inspect::rekey(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Verify(args) => match &args.directory {
            Some(directory) => inspect::verify(directory, &args.keys),
            None => replicas::verify(&args),
        },
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => failed(&format!("{error}{}", advice(&*error))),
    }
}

/// Says why nothing was done. Where that cannot be written, on a full disk, the exit code says it alone.
fn failed(why: &str) -> ExitCode {
    drop(writeln!(io::stderr(), "leeward: {why}"));
    ExitCode::from(2)
}

/// Advice to append to an error: the commands and options that help, which the crates below do not know.
fn advice(error: &(dyn Error + 'static)) -> &'static str {
    let client = match error.downcast_ref::<BenchError>() {
        Some(BenchError::Client(error)) => Some(error),
        _ => error.downcast_ref::<ClientError>(),
    };
    match client {
        Some(ClientError::Unreachable { .. }) => {
            "\nIs a cluster running? `leeward dev` starts one on this machine; --connect HOST:PORT,... names native \
             addresses of nodes elsewhere"
        }
        Some(ClientError::Op(OpError::Unauthenticated(_))) => {
            "\n--user NAME, with --password-file FILE or the variable LEEWARD_PASSWORD, connects as a user"
        }
        _ => "",
    }
}

/// Writes a result to the standard output. `leeward status | head` is no failure: the reader has closed the pipe.
fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn start_logging(filter: &str) -> Result<(), Box<dyn Error>> {
    let filter: tracing_subscriber::EnvFilter = filter.parse()?;
    let ansi = io::stderr().is_terminal();
    // A log that cannot be written, on a full disk, must not end the process: reporting the failure there would panic.
    let lines = log::LineLog::new(io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(lines).with_ansi(ansi);
    log.log_internal_errors(false).init();
    Ok(())
}
