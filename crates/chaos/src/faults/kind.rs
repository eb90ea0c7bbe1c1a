//! The kinds of faults, and what a machine must offer for them. Plain data.

use std::fmt;
use std::str::FromStr;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    /// `kill -9` of a server, which is started again later.
    Kill,
    /// `kill -9` of all servers at once.
    KillAll,
    /// `kill -9` of all servers on a host: the first two say that they share one.
    Host,
    /// SIGSTOP of a server, and SIGCONT.
    Stop,
    /// A server, or two of five, is cut off from the others, often from the coordinator too. Clients still reach it.
    Partition,
    /// No packet of the others reaches a server, or the other way round. The opposite direction works.
    OneWay,
    /// A server's answers to its clients are lost, after the operations were executed. Everything else reaches its receiver.
    Mute,
    /// Packets between a server and the others take 20 to 250 ms longer each way.
    Delay,
    /// Between a server and the others 2 to 30 % of the packets are lost.
    Loss,
    /// The disk of a server reads and writes 64 KiB to 1 MiB a second.
    SlowDisk,
    /// The disk of a server, or of all, is full to the last block.
    FullDisk,
    /// Clients fill the last few MiB of a server's disk, or of all, with large values. They are deleted while it is full.
    Fill,
    /// `kill -9` of the coordinator; of an ensemble, one process or all.
    CoordinatorKill,
    /// SIGSTOP of a coordinator's process.
    CoordinatorStop,
    /// A server is cut off from the coordinator until its session has expired.
    CoordinatorCut,
    /// A server is killed and restarted at once with a boot clock that is far ahead. Its next incarnation has the machine's clock
    /// again.
    Clock,
    /// SIGTERM of a server, which hands over its regions and ends. It is restarted later.
    Restart,
    /// Operators request another primary of a region, or of all regions.
    HandOver,
    /// Operators drain a server, and take it back.
    Drain,
    /// Operators split a region.
    Split,
    /// Operators merge a region into its neighbour.
    Merge,
    /// Operators change how the backups of a table keep their copies.
    Alter,
    /// Clients send commands without pause that are cheap to send and expensive to answer.
    Flood,
    /// Clients request large values repeatedly, and read no answer.
    Hoard,
    /// Clients send the largest keys, values, batches and ranges, and larger ones.
    Giants,
    /// Clients send random and changed bytes to every port.
    Garbage,
    /// Clients try passwords without pause. Other clients of their addresses would have to wait, so it is only measured.
    Guesses,
}

/// Two faults of one class do not strike at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Process,
    Network,
    Disk,
    Coordinator,
    Operator,
    Client,
}

/// What a machine must offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Namespaces,
    OwnDisks,
    SlowDisks,
    ClockOffsets,
    /// More servers than a region has replicas.
    SpareServer,
    /// It is never part of a run: `stress` measures it.
    Stress,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 27] = [
        FaultKind::Kill,
        FaultKind::KillAll,
        FaultKind::Host,
        FaultKind::Stop,
        FaultKind::Partition,
        FaultKind::OneWay,
        FaultKind::Mute,
        FaultKind::Delay,
        FaultKind::Loss,
        FaultKind::SlowDisk,
        FaultKind::FullDisk,
        FaultKind::Fill,
        FaultKind::CoordinatorKill,
        FaultKind::CoordinatorStop,
        FaultKind::CoordinatorCut,
        FaultKind::Clock,
        FaultKind::Restart,
        FaultKind::HandOver,
        FaultKind::Drain,
        FaultKind::Split,
        FaultKind::Merge,
        FaultKind::Alter,
        FaultKind::Flood,
        FaultKind::Hoard,
        FaultKind::Giants,
        FaultKind::Garbage,
        FaultKind::Guesses,
    ];

    /// Its name on the command line and in the JSON.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// A description in a few words.
    pub fn what(self) -> &'static str {
        self.row().1
    }

    pub(crate) fn class(self) -> Class {
        self.row().2
    }

    pub(crate) fn need(self) -> Need {
        self.row().3
    }

    fn row(self) -> (&'static str, &'static str, Class, Need) {
        match self {
            FaultKind::Flood => ("flood", "commands without pause from many connections", Class::Client, Need::Nothing),
            FaultKind::Hoard => ("hoard", "many connections that never read", Class::Client, Need::Nothing),
            FaultKind::Giants => {
                ("giants", "the largest keys, values, batches and ranges", Class::Client, Need::Nothing)
            }
            FaultKind::Garbage => ("garbage", "random and changed bytes to every port", Class::Client, Need::Nothing),
            FaultKind::Guesses => ("guesses", "many connections that try passwords", Class::Client, Need::Stress),
            FaultKind::Kill => ("kill", "kill -9 of a server", Class::Process, Need::Nothing),
            FaultKind::KillAll => ("kill-all", "kill -9 of all servers at once", Class::Process, Need::Nothing),
            FaultKind::Host => ("host", "kill -9 of both servers of a host", Class::Process, Need::SpareServer),
            FaultKind::Stop => ("stop", "SIGSTOP of a server, and SIGCONT", Class::Process, Need::Nothing),
            FaultKind::Partition => {
                ("partition", "a minority cut off from the other servers", Class::Network, Need::Namespaces)
            }
            FaultKind::OneWay => {
                ("one-way", "a server reaches no other, or none reaches it", Class::Network, Need::Namespaces)
            }
            FaultKind::Mute => {
                ("mute", "answers of a server to its clients are lost", Class::Network, Need::Namespaces)
            }
            FaultKind::Delay => {
                ("delay", "20 to 250 ms each way between a server and the others", Class::Network, Need::Namespaces)
            }
            FaultKind::Loss => {
                ("loss", "2 to 30 % of packets lost between a server and the others", Class::Network, Need::Namespaces)
            }
            FaultKind::SlowDisk => ("slow-disk", "a disk takes 64 KiB to 1 MiB a second", Class::Disk, Need::SlowDisks),
            FaultKind::FullDisk => ("full-disk", "a disk, or all, full to the last block", Class::Disk, Need::OwnDisks),
            FaultKind::Fill => {
                ("fill", "the last MiB of a disk, or of all, are written to", Class::Disk, Need::OwnDisks)
            }
            FaultKind::CoordinatorKill => {
                ("coordinator-kill", "kill -9 of the coordinator", Class::Coordinator, Need::Nothing)
            }
            FaultKind::CoordinatorStop => {
                ("coordinator-stop", "SIGSTOP of the coordinator, and SIGCONT", Class::Coordinator, Need::Nothing)
            }
            FaultKind::CoordinatorCut => {
                ("coordinator-cut", "a server's session at the coordinator expires", Class::Network, Need::Namespaces)
            }
            FaultKind::Clock => {
                ("clock", "a server restarts with another boot clock", Class::Process, Need::ClockOffsets)
            }
            FaultKind::Restart => {
                ("restart", "SIGTERM of a server, which hands over first", Class::Process, Need::Nothing)
            }
            FaultKind::HandOver => {
                ("hand-over", "another primary is requested, of a region or of all", Class::Operator, Need::Nothing)
            }
            FaultKind::Drain => ("drain", "a server is drained, and taken back", Class::Operator, Need::SpareServer),
            FaultKind::Split => ("split", "a region is split", Class::Operator, Need::Nothing),
            FaultKind::Merge => ("merge", "a region is merged into its neighbour", Class::Operator, Need::Nothing),
            FaultKind::Alter => ("alter", "a table gets another mode of backups", Class::Operator, Need::Nothing),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultKind, String> {
        let names = || FaultKind::ALL.map(FaultKind::name).join(", ");
        FaultKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| format!("one of {}", names()))
    }
}
