//! `leeward certs`: a small certificate authority, for a cluster with TLS whose operators have none.

use crate::{Outcome, show};
use clap::{Args, Subcommand};
use leeward_security::certificates::{Authority, CA_CERTIFICATE, describe};
use std::path::PathBuf;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// `leeward certs`.
#[derive(Args, Debug)]
pub(crate) struct CertsCommands {
    #[command(subcommand)]
    pub(crate) command: CertsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertsCommand {
    /// Make an authority: ca.crt, which every node and client needs, and ca.key, which stays where it is
    Create(CreateArgs),
    /// Make a certificate and a key for a server
    Add(AddArgs),
    /// Show the names in certificates, and how long they are valid
    Show(ShowArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward certs create                            the authority, in ./certs
  leeward certs add --server 1 --host db1.example.org,10.0.0.1
  leeward serve --config node.toml --set tls_ca=certs/ca.crt --set tls_certificate=certs/server-1.crt \\
    --set tls_key=certs/server-1.key")]
pub(crate) struct CreateArgs {
    /// Where it is made
    #[arg(long, value_name = "DIR", default_value = "certs")]
    directory: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The files are server-N.crt and server-N.key. Files that exist are not replaced: to renew a certificate, make one in another
directory that has the same ca.crt and ca.key, and move both files over those of the node. A running node uses them for new
connections within seconds.

Examples:
  leeward certs add --server 1 --host db1.example.org,10.0.0.1
  leeward certs add --server 2 --host localhost,127.0.0.1 --days 30")]
pub(crate) struct AddArgs {
    /// Where the authority is
    #[arg(long, value_name = "DIR", default_value = "certs")]
    directory: PathBuf,
    /// The server's number, as its setting server_id
    #[arg(long, value_name = "SERVER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    server: u32,
    /// Names and IP addresses under which clients reach the server
    #[arg(long, value_delimiter = ',', value_name = "HOSTS", required = true)]
    host: Vec<String>,
    /// How long it is valid
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3_650))]
    days: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward certs show certs/server-1.crt certs/ca.crt")]
pub(crate) struct ShowArgs {
    /// Certificates in PEM
    #[arg(required = true, value_name = "FILES")]
    files: Vec<PathBuf>,
}

pub(crate) fn run(command: &CertsCommand) -> Outcome {
    match command {
        CertsCommand::Create(args) => {
            Authority::create(&args.directory)?;
            println!(
                "{} is for every node and client; keep ca.key secret",
                args.directory.join(CA_CERTIFICATE).display()
            );
        }
        CertsCommand::Add(args) => {
            let lifetime = DAY * u32::try_from(args.days)?;
            let (certificate, key) = Authority::open(&args.directory)?.add_server(args.server, &args.host, lifetime)?;
            println!("{} and {}, for {} days", certificate.display(), key.display(), args.days);
        }
        CertsCommand::Show(args) => {
            for file in &args.files {
                for found in describe(file)? {
                    show(&format!("{}: {found}\n", file.display()))?;
                }
            }
        }
    }
    Ok(true)
}
