//! The network between the processes. Each process has a network namespace, and all namespaces are on one bridge. This process,
//! and with it the clients, is on the bridge too. On a machine without namespaces all processes share the loopback interface, on
//! different ports.
//!
//! The receiver's namespace drops packets. It has one table of rules, which is replaced as a whole whenever a rule changes.
//! Belongs to one thread.

use crate::cluster::delay::Proxy;
use crate::error::ChaosError;
use crate::place::RunResources;
use crate::tool;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Second byte of the addresses; the first is 10, the third is free.
const SECOND: u8 = 213;
/// Last byte of the first host's address.
const FIRST_HOST: u8 = 10;
/// Candidate ports of a run on the loopback interface. They are below those that the system gives to outgoing connections.
const PORTS: std::ops::Range<u16> = 21_000..32_000;
/// Ports between those of two kinds.
pub(crate) const KIND_PORTS: u16 = 20;
/// Kinds of ports.
const KINDS: u16 = 6;

/// The number of a process's host: servers have the first numbers, the coordinator's processes the next ones.
pub(crate) type HostNo = usize;

/// The network between the processes of a run.
#[derive(Debug)]
pub(crate) struct Network {
    place: Arc<RunResources>,
    hosts: Vec<Rules>,
    /// Third byte of the addresses; `None`: all is on the loopback interface.
    subnet: Option<u8>,
    base_port: u16,
    proxies: Vec<Proxy>,
}

/// Rules of a host: what does not reach it, and what is sent another way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rules {
    /// Packets from these hosts are dropped.
    cut_from: BTreeSet<HostNo>,
    /// By host: this many of 1000 packets from it are lost.
    loss: BTreeMap<HostNo, u32>,
    /// By host: new connections to it go to this proxy.
    detour: BTreeMap<HostNo, SocketAddr>,
    /// Its packets to clients are dropped.
    is_mute: bool,
}

impl Network {
    /// Makes `hosts` namespaces, or with `alone` none.
    ///
    /// # Errors
    /// The machine refuses. What was made until then is removed with the `place`.
    pub(crate) fn new(place: Arc<RunResources>, hosts: usize, alone: bool) -> Result<Network, ChaosError> {
        let mut network = Network {
            place,
            hosts: vec![Rules::default(); hosts],
            subnet: None,
            base_port: PORTS.start,
            proxies: Vec::new(),
        };
        if alone {
            network.base_port = free_ports()?;
            return Ok(network);
        }
        let bridge = network.place.bridge();
        tool::run(&format!("ip link add {bridge} type bridge"))?;
        let subnet = free_subnet(&bridge)?;
        network.subnet = Some(subnet);
        tool::run(&format!("ip link set {bridge} up"))?;
        for host in 0..hosts {
            let (namespace, link) = (network.place.namespace(host), network.place.link(host));
            tool::run(&format!("ip netns add {namespace}"))?;
            tool::run(&format!("ip link add {link} type veth peer name eth0 netns {namespace}"))?;
            tool::run(&format!("ip link set {link} master {bridge}"))?;
            tool::run(&format!("ip link set {link} up"))?;
            tool::run(&format!("ip -n {namespace} addr add {}/24 dev eth0", network.ip(host)))?;
            tool::run(&format!("ip -n {namespace} link set eth0 up"))?;
            tool::run(&format!("ip -n {namespace} link set lo up"))?;
        }
        Ok(network)
    }

    /// Whether hosts can be cut off from each other.
    pub(crate) fn has_namespaces(&self) -> bool {
        self.subnet.is_some()
    }

    pub(crate) fn ip(&self, host: HostNo) -> IpAddr {
        match self.subnet {
            Some(subnet) => Ipv4Addr::new(10, SECOND, subnet, FIRST_HOST + host as u8).into(),
            None => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// The address of a host's port of some kind.
    pub(crate) fn address(&self, host: HostNo, kind: u16) -> SocketAddr {
        assert!(kind < KINDS && host < KIND_PORTS as usize, "there is a port for it");
        (self.ip(host), self.base_port + kind * KIND_PORTS + host as u16).into()
    }

    /// A command that runs `program` on a host.
    pub(crate) fn command(&self, host: HostNo, program: &str) -> Command {
        if !self.has_namespaces() {
            return Command::new(program);
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.place.namespace(host), program]);
        command
    }

    /// Nothing from `from` reaches `to` any more.
    pub(crate) fn cut(&mut self, from: HostNo, to: HostNo) -> Result<(), ChaosError> {
        self.hosts[to].cut_from.insert(from);
        self.apply(to)
    }

    /// Of 1000 packets between the two, this many are lost.
    pub(crate) fn lose(&mut self, one: HostNo, other: HostNo, per_mille: u32) -> Result<(), ChaosError> {
        self.hosts[one].loss.insert(other, per_mille);
        self.hosts[other].loss.insert(one, per_mille);
        self.apply(one)?;
        self.apply(other)
    }

    /// Packets of the two to each other's port of this kind take `delay` longer. Existing connections are broken.
    pub(crate) fn delay(&mut self, one: HostNo, other: HostNo, kind: u16, delay: Duration) -> Result<(), ChaosError> {
        for (from, to) in [(one, other), (other, one)] {
            let proxy = Proxy::start((self.outside(), 0).into(), self.address(to, kind), delay)?;
            self.hosts[from].detour.insert(to, proxy.address());
            self.proxies.push(proxy);
            self.apply(from)?;
            self.break_connections(from, to);
        }
        Ok(())
    }

    /// Nothing from the host reaches clients.
    pub(crate) fn mute(&mut self, host: HostNo) -> Result<(), ChaosError> {
        self.hosts[host].is_mute = true;
        self.apply(host)
    }

    /// The address of this process, and so of the clients, on the bridge.
    fn outside(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, SECOND, self.subnet.unwrap_or_default(), 1)
    }

    /// Heals the network: every packet reaches its receiver.
    pub(crate) fn heal(&mut self) -> Result<(), ChaosError> {
        for host in 0..self.hosts.len() {
            if std::mem::take(&mut self.hosts[host]) != Rules::default() {
                self.apply(host)?;
            }
        }
        self.proxies.clear();
        Ok(())
    }

    fn break_connections(&self, from: HostNo, to: HostNo) {
        let namespace = self.place.namespace(from);
        tool::attempt(&format!("ip netns exec {namespace} ss -K -H -t -n dst {}", self.ip(to)));
    }

    /// Replaces the rules in the namespace of a host by its current ones.
    fn apply(&self, host: HostNo) -> Result<(), ChaosError> {
        let rules = &self.hosts[host];
        let mut text = String::from("table inet chaos\ndelete table inet chaos\ntable inet chaos {\n chain input {\n");
        let write = |text: &mut String, line: String| text.write_str(&line).expect("a string takes it");
        write(&mut text, "  type filter hook input priority 0;\n".into());
        for from in &rules.cut_from {
            write(&mut text, format!("  ip saddr {} drop\n", self.ip(*from)));
        }
        for (from, per_mille) in &rules.loss {
            write(&mut text, format!("  ip saddr {} numgen random mod 1000 < {per_mille} drop\n", self.ip(*from)));
        }
        write(&mut text, " }\n chain output {\n  type nat hook output priority -100;\n".into());
        for (to, proxy) in &rules.detour {
            write(&mut text, format!("  ip daddr {} meta l4proto tcp dnat ip to {proxy}\n", self.ip(*to)));
        }
        write(&mut text, " }\n chain replies {\n  type filter hook output priority 0;\n".into());
        if rules.is_mute {
            write(&mut text, format!("  ip daddr {} drop\n", self.outside()));
        }
        write(&mut text, " }\n}\n".into());
        tool::run_with(&format!("ip netns exec {} nft -f -", self.place.namespace(host)), &text).map(drop)
    }
}

/// Gives the bridge an address in a subnet that is unused on this machine.
fn free_subnet(bridge: &str) -> Result<u8, ChaosError> {
    let routes = tool::run("ip -4 -o addr show")?;
    let is_free = |subnet: &u8| !routes.contains(&format!("10.{SECOND}.{subnet}."));
    let subnet = (1..=250).find(is_free).ok_or_else(|| {
        ChaosError::Refused(format!("all of 10.{SECOND}.0.0/16 is in use: `ip addr` shows by which interfaces"))
    })?;
    tool::run(&format!("ip addr add 10.{SECOND}.{subnet}.1/24 dev {bridge}"))?;
    Ok(subnet)
}

/// The first of enough consecutive ports that are free.
fn free_ports() -> Result<u16, ChaosError> {
    let span = KINDS * KIND_PORTS;
    let mut bases = PORTS.step_by(span as usize);
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let base = bases.find(|base| (*base..base + span).all(is_free));
    base.ok_or_else(|| ChaosError::Refused("no ports are free on the loopback interface".into()))
}
