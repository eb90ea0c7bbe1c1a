//! `cargo xtask pgo`: builds a program with a profile of its own work (profile-guided optimization).
//!
//! ```text
//!  build with counters --> run the training --> merge what was counted --> build with the profile
//! ```
//! Compilers then know which branches are taken and which calls are frequent. Functions that the training never calls are
//! optimized for size: so it covers what a busy node, and a busy embedded store, does. All files are below `target/pgo`.

use clap::{Args, ValueEnum};
use leeward_bench::Failure;
use leeward_bench::redis;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[cfg(test)]
#[path = "pgo_tests.rs"]
mod tests;

/// Options of a build with a profile.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo xtask pgo
  cargo xtask pgo rivals
It needs llvm-profdata (`rustup component add llvm-tools`), and for `leeward` also redis-server and redis-benchmark (packages
redis-server and redis-tools), which are part of the training. It takes 20 minutes on 2 cores.")]
pub struct Pgo {
    /// What to build
    #[arg(value_enum, default_value_t)]
    program: Program,
}

/// A program whose work is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Program {
    /// The `leeward` binary. Training: YCSB on three nodes in several modes, and requests of Redis clients
    #[default]
    Leeward,
    /// The comparison with other engines, without their drivers. Training: YCSB on an embedded store
    Rivals,
}

impl Program {
    fn package(self) -> &'static str {
        match self {
            Program::Leeward => "leeward-cli",
            Program::Rivals => "leeward-rivals",
        }
    }

    fn binary(self) -> &'static str {
        match self {
            Program::Leeward => "leeward",
            Program::Rivals => "leeward-rivals",
        }
    }

    /// Arguments of its runs in the training.
    fn runs(self) -> Vec<String> {
        let small = "--records 300000 --ops 300000";
        match self {
            Program::Leeward => [
                format!("bench ycsb --dev 3 --workload load,a,b,c,f,d,e --mix sd {small}"),
                format!("bench ycsb --dev 3 --rings --workload load,a,c --mix s {small}"),
                format!("bench ycsb --dev 3 --fabric tcp --workload load,a --mix sd {small}"),
                format!("bench ycsb --dev 3 --backups build-index --workload load,a --mix s {small}"),
                format!("bench ycsb --dev 3 --compression lz4 --workload load,a --mix md {small}"),
            ]
            .to_vec(),
            Program::Rivals => ["sd", "s", "l"]
                .map(|mix| format!("run --engine leeward --mix {mix} --records 1000000 --ops 400000"))
                .map(|run| run + " --workloads load,a,b,c,f,d,e")
                .to_vec(),
        }
    }
}

/// Builds, trains, and builds again. Prints where the program is.
pub fn pgo(root: &Path, options: &Pgo) -> ExitCode {
    match build(root, options.program) {
        Ok(program) => {
            println!("{}", program.display());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn build(root: &Path, program: Program) -> Result<PathBuf, Failure> {
    let tools = Tools::find()?;
    let home = root.join("target").join("pgo");
    let counts = home.join(format!("{}-counts", program.binary()));
    let profile = home.join(format!("{}.profdata", program.binary()));
    // What an earlier version counted is of other code.
    match fs::remove_dir_all(&counts) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&counts, &error)),
        _ => {}
    }
    let flag = format!("-Cprofile-generate={}", counts.display());
    let counted = tools.compile(root, &home.join("counted"), program, &flag)?;
    eprintln!("The training begins. Programs that count are slow: its figures mean nothing.");
    for arguments in program.runs() {
        run(Command::new(&counted).args(arguments.split(' ')).current_dir(root))?;
    }
    if program == Program::Leeward {
        let options = redis::Options { rounds: 1, requests: 400_000, json: None };
        redis::run(&options, counted, None)?;
    }
    run(Command::new(&tools.profdata).arg("merge").arg("--output").arg(&profile).arg(&counts))?;
    tools.compile(root, &home, program, &format!("-Cprofile-use={}", profile.display()))
}

/// What belongs to the compiler.
struct Tools {
    profdata: PathBuf,
    /// The target that it builds for by default. Named as one, it spares build scripts the flags.
    host: String,
}

impl Tools {
    fn find() -> Result<Tools, Failure> {
        let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let host = host(&output(Command::new("rustc").arg("-vV"))?)?;
        let libraries = Path::new(sysroot.trim()).join("lib").join("rustlib").join(&host);
        let profdata = libraries.join("bin").join("llvm-profdata");
        match profdata.exists() {
            true => Ok(Tools { profdata, host }),
            false => {
                let missing = profdata.display();
                Err(format!("{missing} is missing: run `rustup component add llvm-tools`").into())
            }
        }
    }

    /// Builds a program in `directory`, with one flag more.
    fn compile(&self, root: &Path, directory: &Path, program: Program, flag: &str) -> Result<PathBuf, Failure> {
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        let mut cargo = crate::cargo();
        cargo.args(["build", "--release", "--package", program.package(), "--target", &self.host]);
        cargo.arg("--target-dir").arg(directory).env("RUSTFLAGS", format!("{flags} {flag}").trim());
        run(cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").current_dir(root))?;
        Ok(directory.join(&self.host).join("release").join(program.binary()))
    }
}

/// The host in what `rustc -vV` prints.
fn host(version: &str) -> Result<String, Failure> {
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "`rustc -vV` names no host".into())
}

fn failed(what: &Path, error: &std::io::Error) -> Failure {
    format!("{}: {error}", what.display()).into()
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(|error| failed(Path::new(command.get_program()), &error))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", output.status).into()),
    }
}

/// Runs a command to its end, and says so first.
fn run(command: &mut Command) -> Result<(), Failure> {
    eprintln!("{command:?}");
    let status = command.status().map_err(|error| failed(Path::new(command.get_program()), &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {status}").into()),
    }
}
