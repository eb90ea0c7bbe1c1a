//! The cluster to run, and the settings of its nodes. Plain data, except that it reads the log of a dead node.

use super::{Death, DevError, Ports};
use bytes::Bytes;
use clap::ValueEnum;
use leeward_format::cluster::TableOptions;
use leeward_security::certificates::{
    Authority, CA_CERTIFICATE, CA_KEY, COORDINATOR_NAME, coordinator_files, server_files,
};
use leeward_security::passwords::random_hex;
use leeward_security::tls::{NodeTls, TlsFiles};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Lines of a node's log that are shown when it dies.
const SHOWN_LOG_LINES: usize = 12;

/// How nodes write each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fabric {
    /// Shared memory between the processes of this machine
    Shm,
    /// TCP
    Tcp,
    /// libfabric, with the first provider that is available: EFA, verbs, its own TCP
    Libfabric,
    /// libfabric over InfiniBand or RoCE cards
    #[value(name = "libfabric:verbs")]
    LibfabricVerbs,
    /// libfabric over AWS's Elastic Fabric Adapter
    #[value(name = "libfabric:efa")]
    LibfabricEfa,
    /// libfabric's own TCP
    #[value(name = "libfabric:tcp")]
    LibfabricTcp,
    /// libfabric's own shared memory
    #[value(name = "libfabric:shm")]
    LibfabricShm,
}

impl Fabric {
    /// Its name on the command line and in a node's settings.
    fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }
}

/// The cluster to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `leeward` binary, which each node runs.
    pub program: PathBuf,
    /// Number of nodes.
    pub nodes: u32,
    /// How many of the last nodes are not started with the others.
    pub late: u32,
    /// Where data and logs are.
    pub directory: PathBuf,
    /// Ports of all nodes.
    pub ports: Ports,
    /// First keys of the regions after the first.
    pub splits: Vec<Bytes>,
    /// How nodes write each other's memory.
    pub fabric: Fabric,
    /// Options of the table that a new cluster has.
    pub table: TableOptions,
    /// Everything is encrypted, with certificates in [`Plan::certificates`].
    pub tls: bool,
    /// Volumes are encrypted, with a key in [`Plan::key_file`].
    pub encrypt: bool,
    /// Settings for every node.
    pub settings: Vec<(String, String)>,
}

/// How long the certificates are valid: they are for this machine only.
const CERTIFICATES_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Bytes of a key of volumes.
const KEY_BYTES: usize = 32;

/// Options of the default table for a cluster of `nodes`.
pub fn default_table(nodes: u32) -> TableOptions {
    let default = TableOptions::default();
    let replicas = nodes.min(default.replicas);
    TableOptions { replicas, min_in_sync: replicas / 2 + 1, ..default }
}

impl Plan {
    /// A cluster with the default table, whose regions after the first begin at `splits`, and ports that are free.
    ///
    /// # Errors
    /// No ports are free.
    pub fn new(program: PathBuf, nodes: u32, splits: Vec<Bytes>, directory: PathBuf) -> Result<Plan, DevError> {
        Ok(Plan {
            program,
            nodes,
            late: 0,
            directory,
            ports: Ports::free(nodes).ok_or(DevError::NoPorts)?,
            splits,
            fabric: Fabric::Shm,
            table: default_table(nodes),
            tls: false,
            encrypt: false,
            settings: Vec::new(),
        })
    }

    /// Whether the coordinator is in this process. Otherwise the settings say where it is.
    pub(super) fn hosts_coordinator(&self) -> bool {
        self.settings.iter().all(|(name, _)| name != "coordinator")
    }

    /// Directory of the certificates of a cluster with TLS.
    pub fn certificates(&self) -> PathBuf {
        self.directory.join("certs")
    }

    /// Makes the certificates that a cluster with TLS lacks.
    pub(super) fn make_certificates(&self) -> Result<(), DevError> {
        if !self.tls {
            return Ok(());
        }
        let directory = self.certificates();
        let authority = match directory.join(CA_CERTIFICATE).exists() {
            true => Authority::open(&directory)?,
            false => Authority::create(&directory)?,
        };
        if !coordinator_files(&directory).0.exists() {
            authority.add_coordinator(CERTIFICATES_LIFETIME)?;
        }
        for node in (1..=self.nodes).filter(|node| !server_files(&directory, *node).0.exists()) {
            authority.add_server(node, &hosts(), CERTIFICATES_LIFETIME)?;
        }
        Ok(())
    }

    /// Replaces the certificates and keys of all nodes, as an operator does: new ones are made in another directory, and moved
    /// over the old ones.
    ///
    /// # Errors
    /// The authority's key or a file cannot be used.
    pub fn renew_certificates(&self) -> Result<(), DevError> {
        let directory = self.certificates();
        let fault = |path: &Path| {
            let path = path.to_path_buf();
            |source| DevError::File(path, source)
        };
        let fresh = tempfile::tempdir_in(&self.directory).map_err(fault(&self.directory))?;
        for name in [CA_CERTIFICATE, CA_KEY] {
            let copy = fresh.path().join(name);
            fs::copy(directory.join(name), &copy).map_err(fault(&copy))?;
        }
        let authority = Authority::open(fresh.path())?;
        for node in 1..=self.nodes {
            let (made, key) = authority.add_server(node, &hosts(), CERTIFICATES_LIFETIME)?;
            let (old, old_key) = server_files(&directory, node);
            fs::rename(&made, &old).map_err(fault(&old))?;
            fs::rename(&key, &old_key).map_err(fault(&old_key))?;
        }
        Ok(())
    }

    /// The file with the key of a cluster whose volumes are encrypted. It is beside the data, so it protects nothing: it is for
    /// tries.
    pub fn key_file(&self) -> PathBuf {
        self.directory.join("keys")
    }

    /// Makes the key of a cluster whose volumes are encrypted, if there is none.
    pub(super) fn make_key(&self) -> Result<(), DevError> {
        let path = self.key_file();
        if !self.encrypt || path.exists() {
            return Ok(());
        }
        let write = || {
            // Whole or not at all, even if this process dies here.
            let made = path.with_extension("new");
            if made.exists() {
                fs::remove_file(&made)?;
            }
            let mut file = File::options().write(true).create_new(true).mode(0o400).open(&made)?;
            writeln!(file, "dev {}", random_hex(KEY_BYTES))?;
            file.sync_all()?;
            fs::rename(&made, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|source| DevError::File(path.clone(), source))
    }

    fn tls_files(&self, (certificate, key): (PathBuf, PathBuf)) -> TlsFiles {
        TlsFiles { ca: self.certificates().join(CA_CERTIFICATE), certificate, key }
    }

    /// The certificates of the coordinator in this process.
    pub(super) fn coordinator_tls(&self) -> Result<Option<Arc<NodeTls>>, DevError> {
        let load =
            || NodeTls::load(self.tls_files(coordinator_files(&self.certificates())), COORDINATOR_NAME).map(Arc::new);
        Ok(self.tls.then(load).transpose()?)
    }

    /// The native address of a node, as clients write it; over rings, if `rings`.
    pub fn address(&self, node: u32, rings: bool) -> String {
        let (address, way) = (self.ports.native(node), if rings { "+ring" } else { "" });
        match self.tls {
            true => format!("leeward{way}+tls://{address}?ca={}", self.certificates().join(CA_CERTIFICATE).display()),
            false if rings => format!("leeward{way}://{address}"),
            false => address.to_string(),
        }
    }

    pub(super) fn node_directory(&self, node: u32) -> PathBuf {
        self.directory.join(format!("node-{node}"))
    }

    /// The settings of a node, as its process reads them.
    pub fn config_path(&self, node: u32) -> PathBuf {
        self.node_directory(node).join("node.toml")
    }

    /// The log of a node: what its processes have printed.
    pub fn log_path(&self, node: u32) -> PathBuf {
        self.node_directory(node).join("log")
    }

    /// Describes a death, with the last lines of the node's log.
    pub(super) fn explain(&self, death: &Death) -> DevError {
        let log = self.log_path(death.node);
        let text = fs::read(&log).unwrap_or_default();
        let said = text.get(death.earlier_log as usize..).unwrap_or_default();
        let tail = last_lines(&String::from_utf8_lossy(said), SHOWN_LOG_LINES);
        let Death { node, how, .. } = death;
        DevError::Died(format!("node {node} {how}; the end of {}:\n{tail}", log.display()))
    }

    /// The settings of a node, as TOML.
    pub(super) fn config(&self, node: u32) -> String {
        let text = |value: &str| toml::Value::String(value.into()).to_string();
        let mut lines = vec![
            "# Written by `leeward dev`, which replaces what is changed here at its next start.".to_string(),
            format!("server_id = {node}"),
            format!("data_dir = {}", text(&self.node_directory(node).to_string_lossy())),
            format!("resp_listen = {}", text(&self.ports.resp(node).to_string())),
            format!("native_listen = {}", text(&self.ports.native(node).to_string())),
            format!("admin_listen = {}", text(&self.ports.admin(node).to_string())),
            format!("coordinator = {}", text(&self.ports.coordinator().to_string())),
            format!("fabric = {}", text(&self.fabric.name())),
            format!("expected_servers = {}", self.nodes - self.late),
        ];
        if self.tls {
            let TlsFiles { ca, certificate, key } = self.tls_files(server_files(&self.certificates(), node));
            for (name, file) in [("tls_ca", ca), ("tls_certificate", certificate), ("tls_key", key)] {
                lines.push(format!("{name} = {}", text(&file.to_string_lossy())));
            }
        }
        if self.encrypt {
            lines.push(format!("encryption_key_file = {}", text(&self.key_file().to_string_lossy())));
        }
        if self.fabric != Fabric::Shm {
            lines.push(format!("fabric_listen = {}", text(&self.ports.fabric(node).to_string())));
        }
        // A setting of the command line replaces one of these.
        lines.retain(|line| self.settings.iter().all(|(name, _)| !line.starts_with(&format!("{name} ="))));
        for (name, value) in &self.settings {
            let typed = format!("value = {value}").parse::<toml::Table>().is_ok();
            lines.push(format!("{name} = {}", if typed { value.clone() } else { text(value) }));
        }
        lines.join("\n") + "\n"
    }
}

/// The hosts that certificates are for.
fn hosts() -> [String; 2] {
    ["localhost".into(), "127.0.0.1".into()]
}

pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
