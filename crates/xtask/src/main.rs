//! `cargo xtask`: the chores of this repository in one place.
//!
//! - `tidy` checks the rules of this repository that no compiler checks.
//! - `panics` lists the places that may panic in code that handles bytes from sockets and disks.
//! - `simulate` runs seeds of the simulated cluster.
//! - `measure` measures what only developers measure.
//! - `pgo` builds a program for the work that it does.
//! - `miri` looks for undefined behaviour in unsafe code.
//! - `chaos` breaks a cluster of real processes.
//! - `compat` runs the store with other software and file systems, one version after another.
//! - `ci` runs what CI runs.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use leeward_xtask::{cargo, measure, pgo, simulate, tidy};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the Leeward repository")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check the rules of this repository: imports, sizes of files and functions, words, documents that match the code.
    Tidy,
    /// List every place that may panic in code that handles bytes from sockets and disks, with the reason why it does
    /// not.
    Panics,
    /// Run seeds of the simulated cluster, or repeat one with its log.
    Simulate(simulate::Simulate),
    /// Measure what only developers measure: an idle cluster, routes, pauses, moves, splits, faults, rights,
    /// rotation, Redis.
    Measure(measure::Measure),
    /// Build a program with a profile of its own work (profile-guided optimization), below target/pgo.
    Pgo(pgo::Pgo),
    /// Run the tests of the modules with unsafe code that Miri can follow (needs `rustup toolchain install nightly --component
    /// miri,rust-src`).
    Miri,
    /// Break a cluster of real processes and judge what its clients saw; `cargo xtask chaos --help` lists the options.
    #[command(disable_help_flag = true)]
    Chaos {
        /// For `leeward-chaos`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Run the store with one version of other software after another (with Python 3): Redis clients, file systems that are full
    /// (as root), libfabric, ensembles of ZooKeeper that forget; `cargo xtask compat clients --help` lists the options.
    #[command(disable_help_flag = true)]
    Compat {
        /// What to compare.
        what: Compared,
        /// For the script of that name in `tests/compat`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Run what CI runs: format, lints, tests, documentation, client checks.
    Ci,
}

/// What `compat` compares.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Compared {
    Clients,
    Filesystems,
    Libfabric,
    Zookeeper,
}

impl Compared {
    fn script(self) -> &'static str {
        match self {
            Compared::Clients => "clients.py",
            Compared::Filesystems => "filesystems.py",
            Compared::Libfabric => "libfabric.py",
            Compared::Zookeeper => "zookeeper.py",
        }
    }
}

fn main() -> ExitCode {
    let root = tidy::workspace_root();
    match Arguments::parse().chore {
        Chore::Tidy => report(&root),
        Chore::Panics => panics(&root),
        Chore::Simulate(options) => simulate::simulate(&options),
        Chore::Measure(options) => measure::measure(&options),
        Chore::Pgo(options) => pgo::pgo(&root, &options),
        Chore::Miri => miri(&root),
        Chore::Chaos { options } => chaos(&root, &options),
        Chore::Compat { what, options } => compat(&root, what, &options),
        Chore::Ci => run(Command::new("bash").arg(root.join(".ci/run")).current_dir(&root)),
    }
}

fn panics(root: &Path) -> ExitCode {
    match tidy::panics(root) {
        Ok(places) => {
            places.iter().for_each(|place| println!("{place}"));
            println!("{} places", places.len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the repository cannot be read: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Packages, and prefixes of the tests of their unsafe code. Miri cannot run code that maps files or uses kernel rings.
const UNSAFE: [(&str, &str); 3] =
    [("leeward-engine", "memtable::"), ("leeward-platform", "append::"), ("leeward-platform", "memory::")];

fn miri(root: &Path) -> ExitCode {
    for (package, tests) in UNSAFE {
        let mut command = cargo();
        command.args(["+nightly", "miri", "test", "--package", package, "--lib", tests]);
        // Seeds of tests come from the clock.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").current_dir(root);
        if run(&mut command) != ExitCode::SUCCESS {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Builds the binary under test and the suite.
fn chaos(root: &Path, options: &[OsString]) -> ExitCode {
    in_place_of_this(root, &["leeward-cli", "leeward-chaos"], |programs| {
        let mut suite = Command::new(programs.with_file_name("leeward-chaos"));
        suite.args(options);
        suite
    })
}

fn compat(root: &Path, what: Compared, options: &[OsString]) -> ExitCode {
    in_place_of_this(root, &["leeward-cli"], |programs| {
        let mut script = Command::new("python3");
        script.arg(root.join("tests/compat").join(what.script())).arg("--leeward");
        script.arg(programs.with_file_name("leeward")).args(options);
        script
    })
}

/// Builds the packages, and runs a command, which gets the path of this program. It replaces this process, so that it gets
/// a Ctrl-C itself.
fn in_place_of_this(root: &Path, packages: &[&str], command: impl FnOnce(&Path) -> Command) -> ExitCode {
    let mut build = cargo();
    build.args(["build", "--quiet"]).current_dir(root);
    packages.iter().for_each(|package| _ = build.args(["--package", package]));
    let built = run(&mut build);
    match std::env::current_exe() {
        _ if built != ExitCode::SUCCESS => built,
        Ok(own) => {
            let mut command = command(&own);
            let error = command.exec();
            eprintln!("{}: {error}", command.get_program().display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("cannot tell where this program is: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints every violation, one a line as `file:line: what`, so that editors can jump to it.
fn report(root: &Path) -> ExitCode {
    let violations = match tidy::check(root) {
        Ok(violations) => violations,
        Err(error) => {
            eprintln!("{}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        println!("tidy");
        return ExitCode::SUCCESS;
    }
    eprintln!("{} violations", violations.len());
    ExitCode::FAILURE
}

/// Runs `command` to its end. Answers whether it succeeded.
fn run(command: &mut Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}: {error}", command.get_program().display());
            ExitCode::FAILURE
        }
    }
}
