//! Where the processes are and what comes between them: a network namespace for each, all in one bridge, to which this
//! process, and with it the clients, belong as well; or only the loopback interface, with ports of their own, on a machine
//! that gives no namespaces.
//!
//! What is dropped is told to the namespace of the receiver, which has one table of rules; it is replaced as a whole
//! whenever something changes. Belongs to one thread.

use crate::cluster::delay::Proxy;
use crate::error::ChaosError;
use crate::place::Place;
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
/// Ports that are looked at for a run on the loopback interface: below those that the system gives to outgoing connections.
const PORTS: std::ops::Range<u16> = 21_000..32_000;
/// Ports between those of two kinds.
pub(crate) const KIND_PORTS: u16 = 20;
/// Kinds of ports.
const KINDS: u16 = 6;

/// A place for a process: servers have the first numbers, the coordinator's processes come behind them.
pub(crate) type HostNo = usize;

/// See the module.
#[derive(Debug)]
pub(crate) struct Network {
    place: Arc<Place>,
    hosts: Vec<Rules>,
    /// Third byte of the addresses; `None`: all is on the loopback interface.
    subnet: Option<u8>,
    base_port: u16,
    proxies: Vec<Proxy>,
}

/// What does not reach a host, and what reaches it by another way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rules {
    /// Nothing comes from these.
    cut_from: BTreeSet<HostNo>,
    /// So many of 1000 packets from these are lost.
    loss: BTreeMap<HostNo, u32>,
    /// New connections to these go to a proxy.
    detour: BTreeMap<HostNo, SocketAddr>,
    /// Clients hear nothing from it.
    is_mute: bool,
}

impl Network {
    /// Makes `hosts` namespaces, or with `alone` none.
    ///
    /// # Errors
    /// The machine refuses. What was made until then goes with the `place`.
    pub(crate) fn new(place: Arc<Place>, hosts: usize, alone: bool) -> Result<Network, ChaosError> {
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

    /// A command that runs `program` at a host, in the same process.
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

    /// Of what is sent between the two, so many of 1000 packets are lost.
    pub(crate) fn lose(&mut self, one: HostNo, other: HostNo, per_mille: u32) -> Result<(), ChaosError> {
        self.hosts[one].loss.insert(other, per_mille);
        self.hosts[other].loss.insert(one, per_mille);
        self.apply(one)?;
        self.apply(other)
    }

    /// What the two send to each other's port of the kind takes `delay` longer. Their connections begin anew.
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

    /// Where this process, and with it the clients, are in the bridge.
    fn outside(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, SECOND, self.subnet.unwrap_or_default(), 1)
    }

    /// Everything reaches everyone.
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

    /// Tells the namespace of a host what its rules are now.
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

/// Gives the bridge an address of a subnet that nobody else has on this machine.
fn free_subnet(bridge: &str) -> Result<u8, ChaosError> {
    let routes = tool::run("ip -4 -o addr show")?;
    let is_free = |subnet: &u8| !routes.contains(&format!("10.{SECOND}.{subnet}."));
    let subnet = (1..=250)
        .find(is_free)
        .ok_or_else(|| ChaosError::Refused(format!("all of 10.{SECOND}.0.0/16 is in use: `ip addr` shows by whom")))?;
    tool::run(&format!("ip addr add 10.{SECOND}.{subnet}.1/24 dev {bridge}"))?;
    Ok(subnet)
}

/// The first of enough ports in a row that nobody listens at.
fn free_ports() -> Result<u16, ChaosError> {
    let span = KINDS * KIND_PORTS;
    let mut bases = PORTS.step_by(span as usize);
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let base = bases.find(|base| (*base..base + span).all(is_free));
    base.ok_or_else(|| ChaosError::Refused("no ports are free on the loopback interface".into()))
}
