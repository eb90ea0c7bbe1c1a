//! A node as threads and sockets: starts everything, wires it together, stops it.
//!
//! | thread | does |
//! |---|---|
//! | `node` | the event loop (see `event_loop.rs`): owns the node and every client socket; never blocks but in its poll |
//! | `job-<n>` | the pool: flushes, installs, reads that memory cannot answer |
//! | `background-<n>` | compactions and reads of bases, with a low priority |
//! | `passwords` | checks of passwords, with the lowest priority |
//! | `admin`, `admin-render` | HTTP; asks the event loop for figures; makes pages of them |
//! | the fabric's, the rings' fabric's, the coordinator client's | push what they hear through the channel |
//!
//! A panic in the event loop, in a job or in the coordinator client ends the process: their memory can no longer be
//! trusted, but the volume can. A node that continued without one of them would keep its regions, or its place in
//! groups, and serve no client. Other nodes take over from one that dies.

mod acceptor;
mod connection;
mod connections;
mod departure;
mod driver;
mod event_loop;
mod gathering;
mod pool;
mod ready_list;
mod ringing;
mod secrecy;
mod shortage;
mod turn;
mod visitors;

use crate::NodeConfig;
use crate::admin::{self, Admin, AdminEntry, Asking, Hosts};
use crate::channel::{Doorbell, Event, event_channel};
use crate::config::{ConfigError, CoordinatorAt, FabricKind, RingsOn};
use crate::cpu_accounting::{CpuAccounting, SAMPLED_THREAD};
use crate::cursors::Cursors;
use crate::dying::{die, die_of_panic};
use crate::metrics::Metrics;
use crate::node::{CheckpointPlace, Checkpoints, Node, NodeParts, NodeTiming, links};
use crate::passwords::{PasswordThread, Passwords};
use crate::places::RESERVED_FILES;
use crate::rings::{Mailbox, RingFabric, RingLimits, Rings};
use crate::session_context::{Facts, SharedBySessions};
use crate::users::{Audit, Gate};
use connections::Limits;
use driver::Driver;
use event_loop::{EventLoop, EventLoopParts, WAKER};
use leeward_cluster::zookeeper::{self, Credentials};
use leeward_cluster::{Coordinator, embedded};
use leeward_engine::{Purpose, VOLUME_NAME, Volume};
use leeward_fabric::{Admission, Fabric, LibfabricFabric, LinkOptions, PeerId, ShmFabric, Sink, TcpFabric};
use leeward_format::cluster::{Member, ServerInfo};
use leeward_format::{ServerId, VolumeId};
use leeward_platform::disk::DiskLock;
use leeward_platform::disk::private;
use leeward_platform::{BootClock, Clock, Disk, Nanos, RealDisk, Rng};
use leeward_region::client_memory::ClientMemory;
use leeward_security::tls::NodeTls;
use pool::Pool;
use ringing::Ringing;
use secrecy::Secrecy;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use visitors::Visitors;

/// Why a node did not start. Nothing is left running. Nothing was changed, except that directories and an empty volume
/// may have been made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A port is taken, or an address is not this machine's.
    #[error("cannot listen on {address} for {purpose}: {source}{advice}")]
    Listen {
        /// What the port is for.
        purpose: &'static str,
        /// What was to be bound.
        address: String,
        /// What the operating system said.
        source: io::Error,
        /// What to do, after a line break.
        advice: String,
    },
    /// The data directory cannot be used.
    #[error("data directory {}: {source}", path.display())]
    DataDir {
        /// `data_dir` of the configuration, or its default.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another process has the data directory.
    #[error("data directory {} is in use by another process: stop that node, or give this one another data_dir", path.display())]
    Locked {
        /// `data_dir` of the configuration, or its default.
        path: PathBuf,
    },
    /// The keys of the volume cannot be read.
    #[error("encryption keys: {0}")]
    Keys(io::Error),
    /// The volume cannot be opened: damaged, of another version, or no volume.
    #[error(transparent)]
    Volume(#[from] leeward_engine::Error),
    /// The machine refuses threads or descriptors.
    #[error("cannot start the {what}: {source}")]
    System {
        /// What was being started.
        what: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A running node. Dropping it stops the node.
pub struct Server {
    info: ServerInfo,
    doorbell: Doorbell,
    asking: Asking,
    event_loop: Option<JoinHandle<()>>,
    admin: Option<Admin>,
    _lock: DiskLock,
}

/// The listeners of a node, bound before anything else is touched.
struct Listeners {
    resp: TcpListener,
    native: TcpListener,
    admin: TcpListener,
}

/// What the node tells the cluster of itself, without its lock.
fn info(
    config: &NodeConfig,
    member: Member,
    fabric: &dyn Fabric,
    listeners: &Listeners,
) -> Result<ServerInfo, StartError> {
    Ok(ServerInfo {
        fabric_address: fabric_address(config, fabric),
        native_address: config.network.advertised(local(&listeners.native)?),
        resp_address: config.network.advertised(local(&listeners.resp)?),
        admin_address: config.network.advertised(local(&listeners.admin)?),
        location: config.identity.location.clone(),
        ..ServerInfo::of(member)
    })
}

/// Starts a node: binds its ports, takes its data directory, opens its volume, and joins the cluster in the background.
/// Returns as soon as clients can connect. Until the cluster has placed its regions, clients get `-LOADING`.
///
/// # Errors
/// See [`StartError`]; every message says what to do.
pub fn start(config: &NodeConfig) -> Result<Server, StartError> {
    config.validate()?;
    let secrecy = prepare_process(config);
    let credentials = config.coordination.zookeeper_credentials()?;
    let tls = config.tls.load(config.identity.server_id)?;
    let listeners = Listeners::bind(config)?;
    let (lock, volume, copies) = open_volume(config)?;
    let server = ServerId(config.identity.server_id);
    let member = Member { server, volume: volume.id(), incarnation: volume.incarnation() };
    let (doorbell, events) = event_channel();
    let fabric = bind_fabric(config, server, tls.clone(), &doorbell)?;
    let info = ServerInfo { lock: lock.identity().to_owned(), ..info(config, member, &*fabric, &listeners)? };
    let rings = bind_rings(config, server, &volume, &doorbell)?;
    let metrics = Arc::new(crate::commands::new_metrics());
    let clients = ClientMemory::of(volume.memory());
    let audit = Audit::start(config.users.audit_log.as_deref()).map_err(system("audit log"))?;
    let gate = Gate::new(!config.network.insecure_listen, audit.clone());
    let shared = shared(config, &info, local(&listeners.resp)?, (metrics.clone(), clients.clone(), gate));
    let password_thread = PasswordThread::start(audit, metrics.clone()).map_err(system("password thread"))?;
    let parts = NodeParts {
        info: info.clone(),
        settings: config.shared_settings(volume.segment_bytes()),
        volume,
        copies,
        clients,
        fabric,
        readable: rings.as_ref().map(Rings::fabric),
        coordinator: join_cluster(config, credentials, tls.clone(), &doorbell)?,
        cluster: config.master.cluster_options(),
        timing: timing(config),
        checkpoints: Some(checkpoints(config)),
    };
    let cpu_accounting = Arc::new(CpuAccounting::default());
    let asking = Asking::new(doorbell.clone(), cpu_accounting.clone());
    let entry = admin_entry(config, password_thread.passwords().clone());
    let admin =
        Admin::start(listeners.admin, tls.clone(), asking.clone(), metrics, entry).map_err(system("admin thread"))?;
    let poll = mio::Poll::new().map_err(system("event loop"))?;
    doorbell.attach(mio::Waker::new(poll.registry(), WAKER).map_err(system("event loop"))?);
    let pool = Pool::start(config.storage.job_threads, &doorbell, &cpu_accounting).map_err(system("job pool"))?;
    let event_loop = EventLoop::new(EventLoopParts {
        poll,
        events,
        resp: mio::net::TcpListener::from_std(listeners.resp),
        native: mio::net::TcpListener::from_std(listeners.native),
        tls,
        driver: Driver::new(Node::new(BootClock.now(), parts), shared, pool),
        visitors: Visitors::new(password_thread, doorbell.clone(), secrecy),
        ringing: Ringing::new(rings, config.rings.spin()),
        limits: Limits {
            output_bytes: usize::try_from(config.clients.client_output_bytes).unwrap_or(usize::MAX),
            stall: Nanos::from_secs(config.clients.client_stall_seconds),
        },
        heartbeat: asking.heartbeat.clone(),
    });
    let event_loop = event_loop.and_then(|it| spawn(it, cpu_accounting)).map_err(system("event loop"))?;
    tracing::info!(
        server = %server, volume = %member.volume, incarnation = %member.incarnation, resp = info.resp_address,
        native = info.native_address, admin = info.admin_address, "the node is up"
    );
    Ok(Server { info, doorbell, asking, event_loop: Some(event_loop), admin: Some(admin), _lock: lock })
}

/// What the admin port knows of users and of its names.
fn admin_entry(config: &NodeConfig, passwords: Passwords) -> AdminEntry {
    let hosts = match config.tls.tls_ca {
        Some(_) => Hosts::Any,
        None => Hosts::Own(config.network.advertise_host.clone()),
    };
    AdminEntry { passwords, is_protected: !config.network.insecure_listen, hosts }
}

impl Server {
    /// The node's identity and addresses. A port that was given as 0 is the one that the system chose.
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// The node's figures and its region map; `None` if it does not answer within two seconds.
    pub fn snapshot(&self) -> Option<admin::Snapshot> {
        self.asking.ask_blocking()
    }

    /// Stops the node and waits until it has released its ports and its data directory. Acknowledged writes are safe at any
    /// moment, so nothing has to be finished first.
    pub fn stop(mut self) {
        self.shut_down();
    }

    /// Has the other nodes take over the node's primary roles, and then ends it: at the latest two seconds after `timeout`.
    /// Where enough other members are in sync, clients see transfers of primary roles and no errors. The caller must call
    /// [`Server::stop`] afterwards.
    pub fn begin_to_depart(&self, timeout: std::time::Duration) {
        self.doorbell.send(Event::Depart(Nanos(timeout.as_nanos() as u64)));
    }

    /// Whether the node has ended by itself, after [`Server::begin_to_depart`].
    pub fn has_ended(&self) -> bool {
        self.event_loop.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn shut_down(&mut self) {
        self.doorbell.send(Event::Stop);
        if let Some(thread) = self.event_loop.take() {
            // A panic of the event loop has ended the process.
            drop(thread.join());
        }
        self.admin = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Files that the process needs besides those of rings: connections of clients, the volume, the fabric's links, the
/// coordinator, operators.
fn other_files(config: &NodeConfig) -> u64 {
    const OTHERS: u64 = 512 + (RESERVED_FILES + admin::RESERVED_FILES) as u64;
    /// For shared memory and libfabric, six files for each region that is backed up.
    const SHARED: u64 = 60_000;
    let memories = if config.network.fabric == FabricKind::Tcp { 0 } else { SHARED };
    u64::from(config.clients.max_connections) + OTHERS + memories
}

/// Most clients with rings. It is below the 1,024 peers that a fabric takes: one that ended may be a peer for a moment.
const RING_CLIENTS: u64 = 960;
/// Files of one client with rings: two memories, two sockets and a waker.
const RING_FILES: u64 = 5;

/// Most connections of a port that the kernel has established, and that wait to be accepted.
const CONNECT_QUEUE: i32 = 4096;

/// What concerns the whole process, before anything secret is read.
fn prepare_process(config: &NodeConfig) -> Secrecy {
    raise_descriptor_limit(config);
    Secrecy::of(config)
}

/// Lets the process open as many files as its connections may need, as far as the system allows. The usual soft limit
/// of 1,024 is below what a server needs. At the limit, clients wait to be accepted.
fn raise_descriptor_limit(config: &NodeConfig) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = other_files(config) + RING_CLIENTS * RING_FILES;
    let wanted = limit.maximum.map_or(wanted, |most| most.min(wanted));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
        if let Err(error) = raised {
            tracing::warn!(%error, wanted, "the limit on open files could not be raised");
        }
    }
}

/// How many clients may have rings: they get the open files that others leave, or at least a quarter of all.
fn ring_clients(config: &NodeConfig) -> usize {
    use rustix::process::{Resource, getrlimit};
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let left = files.saturating_sub(other_files(config)).max(files / 4);
    (left / RING_FILES).clamp(1, RING_CLIENTS) as usize
}

impl Listeners {
    fn bind(config: &NodeConfig) -> Result<Listeners, StartError> {
        Ok(Listeners {
            resp: bind("Redis clients", "resp_listen", &config.resp_listen())?,
            native: bind("native clients", "native_listen", &config.native_listen())?,
            admin: bind("operators", "admin_listen", &config.admin_listen())?,
        })
    }
}

fn bind(purpose: &'static str, setting: &str, address: &str) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        // As large as the kernel permits (`net.core.somaxconn`), in place of the library's 128: a client that finds it
        // full repeats its first packet only after a second. After a restart thousands connect at once.
        rustix::net::listen(&listener, CONNECT_QUEUE)?;
        Ok(listener)
    });
    listener.map_err(|source| StartError::Listen {
        purpose,
        address: address.into(),
        advice: advice(setting, &source),
        source,
    })
}

fn advice(setting: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "\nAnother process has this port, perhaps an earlier node: stop it, or set {setting} to another port."
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("\nPorts under 1024 belong to the administrator: set {setting} to another port.")
        }
        io::ErrorKind::AddrNotAvailable => format!("\nThis machine does not have that address: change {setting}."),
        _ => String::new(),
    }
}

fn open_volume(config: &NodeConfig) -> Result<(DiskLock, Arc<Volume>, Vec<leeward_engine::Replica>), StartError> {
    let path = config.data_dir();
    let data_dir = |source| StartError::DataDir { path: path.clone(), source };
    let disk = RealDisk::open(&path).map_err(data_dir)?;
    let lock = disk.lock().map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => StartError::Locked { path: path.clone() },
        _ => StartError::DataDir { path: path.clone(), source },
    })?;
    let file = disk.open(VOLUME_NAME).map_err(data_dir)?;
    if let Some(warning) = private::warning(&path) {
        tracing::warn!("{warning}");
    }
    let new = VolumeId(Rng::from_entropy().u64());
    let options = config.storage.volume_options().map_err(StartError::Keys)?;
    let (volume, copies) = Volume::open(file, new, options)?;
    Ok((lock, volume, copies))
}

fn bind_fabric(
    config: &NodeConfig,
    server: ServerId,
    tls: Option<Arc<NodeTls>>,
    doorbell: &Doorbell,
) -> Result<Arc<dyn Fabric>, StartError> {
    let doorbell = doorbell.clone();
    let sink: Sink = Arc::new(move |peer, event| doorbell.send(Event::Link(links::server(peer), event)));
    let address = config.fabric_listen();
    let options = LinkOptions { tls, ..LinkOptions::default() };
    attach(config.network.fabric, server, &address, options, sink).map_err(|source| StartError::Listen {
        purpose: "other nodes",
        address,
        advice: advice("fabric_listen", &source),
        source,
    })
}

/// Attaches this node to a fabric.
fn attach(
    kind: FabricKind,
    server: ServerId,
    address: &str,
    options: LinkOptions,
    sink: Sink,
) -> io::Result<Arc<dyn Fabric>> {
    let me = PeerId(server.0);
    Ok(match kind {
        FabricKind::Tcp => TcpFabric::bind(me, address, options, sink)?,
        FabricKind::Shm => ShmFabric::bind(me, address, options, sink)?,
        FabricKind::Libfabric(provider) => {
            let fabric = LibfabricFabric::bind(me, address, provider, options, sink)?;
            tracing::info!(version = fabric.version(), provider = fabric.provider_name(), "attached to libfabric");
            fabric
        }
    })
}

/// The fabric of clients' rings, separate from that of the nodes: a peer on it can only write into rings.
fn bind_rings(
    config: &NodeConfig,
    server: ServerId,
    volume: &Volume,
    doorbell: &Doorbell,
) -> Result<Option<Rings>, StartError> {
    let mut entropy = Rng::from_entropy();
    let doorbell = doorbell.clone();
    let mailbox = Mailbox::new(move || doorbell.send(Event::Rings));
    let options = LinkOptions { admission: Admission::Sessions, threads: "rings", ..LinkOptions::default() };
    let RingsOn::Fabric(kind) = config.rings.rings else { return Ok(None) };
    let address = match kind {
        FabricKind::Shm => format!("@leeward-rings-{:016x}", entropy.u64()),
        FabricKind::Tcp | FabricKind::Libfabric(_) => {
            let native: SocketAddr = config.native_listen().parse().expect("it was bound");
            SocketAddr::new(native.ip(), 0).to_string()
        }
    };
    let fabric = attach(kind, server, &address, options, mailbox.sink());
    let purpose = "rings of native clients";
    let fabric = fabric.map_err(|source| {
        let advice = "\nClients can do without: set rings = \"off\".".into();
        StartError::Listen { purpose, address, advice, source }
    })?;
    let bound = fabric.local_address();
    let address = bound.parse().map_or(bound, |bound| config.network.advertised(bound));
    let memory = volume.memory();
    let limits = RingLimits {
        clients: ring_clients(config),
        each_bytes: config.rings.ring_bytes as usize,
        total_bytes: usize::try_from(memory.share(Purpose::Rings)).unwrap_or(usize::MAX),
    };
    let on = RingFabric { fabric, name: kind.to_string(), address, node: PeerId(server.0) };
    Ok(Some(Rings::new(on, mailbox, limits, memory.reserve(Purpose::Rings), entropy)))
}

fn fabric_address(config: &NodeConfig, fabric: &dyn Fabric) -> String {
    let address = fabric.local_address();
    match address.parse::<SocketAddr>() {
        Ok(bound) if config.network.fabric != FabricKind::Shm => config.network.advertised(bound),
        _ => address,
    }
}

fn join_cluster(
    config: &NodeConfig,
    credentials: Option<Credentials>,
    tls: Option<Arc<NodeTls>>,
    doorbell: &Doorbell,
) -> Result<Arc<dyn Coordinator>, StartError> {
    let session_timeout = Nanos::from_millis(config.coordination.session_timeout_ms);
    let (doorbell, vital) = (doorbell.clone(), Vital("the coordinator client"));
    let sink = move |event| {
        let _the_threads_own = &vital;
        doorbell.send(Event::Coordinator(event));
    };
    let client = match &config.coordination.coordinator {
        CoordinatorAt::Embedded(address) => {
            embedded::connect(embedded::ClientOptions { address: *address, session_timeout, tls }, sink)
        }
        CoordinatorAt::ZooKeeper(ensemble) => {
            let ensemble = ensemble.clone();
            let options = zookeeper::ClientOptions { ensemble, credentials, session_timeout, tls };
            zookeeper::connect(options, sink)
        }
    };
    Ok(Arc::new(client.map_err(system("coordinator client"))?))
}

fn timing(config: &NodeConfig) -> NodeTiming {
    let defaults = NodeTiming::default().with_lease(Nanos::from_millis(config.replication.lease_ms));
    NodeTiming {
        flush_interval: Nanos::from_millis(config.replication.flush_interval_ms),
        catch_up_bytes: u64::from(config.replication.catch_up_mib_per_second) << 20,
        merge_bytes: config.master.merge_bytes,
        ..defaults
    }
}

/// Checkpoints are beside the volume, each in a directory of its own.
fn checkpoints(config: &NodeConfig) -> Checkpoints {
    let parent = config.data_dir().join("checkpoints");
    Arc::new(move |name, region| {
        let path = parent.join(name).join(format!("region-{region}"));
        let disk = Box::new(RealDisk::open(&path)?);
        Ok(CheckpointPlace { disk, path: path.display().to_string(), volume: VolumeId(Rng::from_entropy().u64()) })
    })
}

fn shared(
    config: &NodeConfig,
    info: &ServerInfo,
    resp: SocketAddr,
    accounts: (Arc<Metrics>, ClientMemory, Gate),
) -> SharedBySessions {
    let started = BootClock.now();
    let Member { server, volume, incarnation } = info.member;
    let facts = Facts {
        server,
        admin_address: info.admin_address.clone(),
        resp_port: resp.port(),
        bind: resp.ip().to_string(),
        run_id: format!("{:08x}{volume}{:016x}", server.0, incarnation.0),
        started,
        max_connections: config.clients.max_connections as usize,
        data_dir: config.data_dir().display().to_string(),
        redis_table: config.clients.redis_table.clone(),
        is_encrypted: config.tls.tls_ca.is_some(),
    };
    SharedBySessions::new(facts, Cursors::new(volume.0.wrapping_add(incarnation.0)), accounts)
}

fn local(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(system("listeners"))
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

fn spawn(event_loop: EventLoop, cpu_accounting: Arc<CpuAccounting>) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(SAMPLED_THREAD.into());
    thread.spawn(move || die_of_panic("the event loop", || run(event_loop, &cpu_accounting)))
}

fn run(event_loop: EventLoop, cpu_accounting: &CpuAccounting) {
    if let Err(error) = event_loop.run(cpu_accounting) {
        panic!("the poll fails, which a machine in order never does: {error}");
    }
}

/// Held by a thread that other code started: a panic of the thread ends the process.
struct Vital(&'static str);

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            die(self.0);
        }
    }
}

#[cfg(test)]
mod tests;
