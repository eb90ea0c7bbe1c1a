//! What a seed is like: how many nodes, which table, what clients do, what breaks. Each seed has a character of its own,
//! so that a few hundred of them go to many corners instead of all to the same middle.
//!
//! Options are drawn independently of each other: what two of them do together is found only where they meet. A test counts that each
//! pair of values which the product allows meets in the seeds of CI. What is drawn is logged when a seed begins.
//!
//! - `table`: the options of the table. - `operator`: what the operator does. - `troubles`: what breaks. - `planted`: where planted bugs show.

mod operator;
mod planted;
mod table;
mod troubles;

use crate::habits::Habits;
use crate::world::FaultKind;
use bytes::Bytes;
use leeward_cluster::Balance;
use leeward_fabric::SimOptions;
use leeward_format::cluster::{Acknowledge, BackupMode, Preset, Reads, TableOptions};
use leeward_format::partition::Partition;
use leeward_platform::{Nanos, Rng};
use leeward_server::node::NodeTiming;
use operator::Operator;
use troubles::{Theme, Troubles};

/// What a power loss may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// No acknowledged write: power is lost only where a member in sync survives it.
    Everything,
    /// Acknowledged writes of the last second, and only the newest ones: power is lost anywhere, everywhere at once too.
    AllButTheLastSecond,
}

impl Promise {
    /// How old an acknowledged write may be that is lost, in a table whose writes are acknowledged so: those since the last flush
    /// began, and some time for slow devices; with last-flush also what a primary had not got through before others took it for
    /// dead.
    pub(crate) fn window(self, acknowledge: Acknowledge) -> Nanos {
        match (self, acknowledge) {
            (Promise::Everything, Acknowledge::LastWrite) => Nanos::ZERO,
            (Promise::AllButTheLastSecond, Acknowledge::LastWrite) => Nanos::from_millis(2_000),
            (_, Acknowledge::LastFlush) => Nanos::from_millis(8_000),
        }
    }
}

/// How nodes differ from those of other seeds.
#[derive(Clone, Debug)]
pub(crate) struct Traits {
    /// What the table has whole.
    preset: Option<Preset>,
    /// A member may break its promises as long as it may owe an answer.
    is_patient: bool,
    /// A node to which all ways are longer, and by how much.
    far: Option<(usize, Nanos)>,
    /// The master evens out what servers have.
    is_balanced: bool,
    theme: Theme,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Character {
    pub(crate) nodes: usize,
    pub(crate) table: TableOptions,
    pub(crate) splits: Vec<Bytes>,
    pub(crate) network: SimOptions,
    pub(crate) promise: Promise,
    pub(crate) habits: Habits,
    pub(crate) troubles: Troubles,
    operator: Operator,
    traits: Traits,
}

impl Character {
    pub(crate) fn choose(rng: &mut Rng) -> Character {
        let nodes = if rng.one_in(5) { 1 } else { 3 };
        let preset = rng.one_in(8).then(|| Preset::ALL[rng.index(Preset::ALL.len())]);
        let mut table = table::draw(nodes, preset, rng);
        let splits = splits(&mut table, rng);
        let traits = Traits::choose(nodes, preset, &table, rng);
        let promise = match nodes == 1 || rng.one_in(if traits.theme == Theme::Power { 2 } else { 6 }) {
            true => Promise::AllButTheLastSecond,
            false => Promise::Everything,
        };
        let mut habits = Habits::choose(nodes, rng);
        if table.reads != Reads::Primary {
            habits.read_stale(500 + rng.below(4) as u32 * 500);
        }
        Character {
            nodes,
            table,
            splits,
            network: SimOptions {
                min_delay: Nanos::from_micros(20),
                max_delay: Nanos::from_micros(rng.between(100, 2_000)),
                min_detect: Nanos::from_millis(20),
                max_detect: Nanos::from_millis(300),
                retry_pause: Nanos::from_millis(50),
            },
            promise,
            habits,
            troubles: troubles::choose(nodes, traits.theme, promise, rng),
            operator: Operator::choose(nodes, rng),
            traits,
        }
    }

    /// The character of `seed`.
    pub(crate) fn of(seed: u64) -> Character {
        Character::choose(&mut Rng::new(seed))
    }

    /// Everything that was drawn of a few values: the name of each choice, and what it came to.
    pub(crate) fn draw(&self) -> Vec<(&'static str, String)> {
        let Traits { preset, is_patient, far, is_balanced, theme } = &self.traits;
        let mut draw = vec![
            ("nodes", self.nodes.to_string()),
            ("regions", self.regions().to_string()),
            ("preset", preset.map_or("none".into(), |preset| format!("{preset:?}"))),
            ("promise", format!("{:?}", self.promise)),
            ("theme", format!("{theme:?}")),
            ("patient", is_patient.to_string()),
            ("far", far.map_or("none".into(), |(_, extra)| extra.as_millis().to_string())),
            ("balanced", is_balanced.to_string()),
        ];
        draw.extend(self.operator.labels());
        draw.extend(table::labels(&self.table));
        draw
    }

    /// [`Character::draw`], and each kind of fault that may strike.
    pub(crate) fn choices(&self) -> Vec<(&'static str, String)> {
        let faults = self.troubles.kinds.iter().map(|kind| ("fault", format!("{kind:?}")));
        self.draw().into_iter().chain(faults).collect()
    }

    /// How many regions there are in the beginning.
    fn regions(&self) -> u64 {
        match self.table.partition {
            Partition::Range => self.splits.len() as u64 + 1,
            Partition::Hash { tokens } => tokens.into(),
        }
    }

    /// A process may die at any moment, whatever else has happened: no disk is lost.
    pub(crate) fn may_die(&self) -> bool {
        !self.troubles.kinds.contains(&FaultKind::ReplaceDisk)
    }

    /// A member that is farther from the others than they are from each other, and how much.
    pub(crate) fn far(&self) -> Option<(usize, Nanos)> {
        self.traits.far
    }

    /// When a master looks whether servers have alike: often, since a run is short.
    pub(crate) fn balance(&self) -> Option<Balance> {
        let often = Balance {
            every: Nanos::from_millis(200),
            settle: Nanos::from_millis(300),
            mourn: Nanos::from_millis(600),
            rest: Nanos::from_millis(200),
            respect: Nanos::from_millis(400),
            remember: Nanos::from_secs(2),
            stale: Nanos::from_secs(2),
            split_ops: 80,
            busy: Nanos::from_millis(300),
            apart: Nanos::from_millis(500),
            attempt: Nanos::from_millis(1_500),
            futile: Nanos::from_millis(1_000),
            merge_bytes: 256 << 10,
            quiet: Nanos::from_millis(500),
        };
        Some(often).filter(|_| self.traits.is_balanced)
    }

    /// Timing of its nodes. Where members are patient, primaries die while some members lack what others have; and tails are saved
    /// often, so that backups that build their index do it of what they have just got. What nobody needs is destroyed soon, since a
    /// run is short.
    pub(crate) fn timing(&self) -> NodeTiming {
        let (surplus_after, load_interval) = (Nanos::from_millis(100), Nanos::from_millis(150));
        let mut timing = NodeTiming { surplus_after, load_interval, ..NodeTiming::default() };
        if self.traits.is_patient {
            timing.replication.promise_patience = timing.replication.answer_patience;
            timing.flush_interval = Nanos::from_millis(20);
        }
        if self.troubles.kinds.contains(&FaultKind::RestoreCopy) {
            timing.replication.floor_interval = Nanos::from_millis(300);
        }
        timing
    }

    /// It in a few words.
    pub(crate) fn name(&self) -> String {
        let draw: Vec<String> = self.draw().into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        format!("{}; {:?}", draw.join(", "), self.troubles.kinds)
    }
}

impl Traits {
    /// How likely a theme and a far member are depends on the table; whether they are possible does not.
    fn choose(nodes: usize, preset: Option<Preset>, table: &TableOptions, rng: &mut Rng) -> Traits {
        let is_patient = rng.one_in(2);
        // With a quorum a far member holds up no write, and has the shortest copy; without, and where members are given time, others
        // come to have much that is not committed, and may build their index of it.
        let has_quorum = table.quorum.is_some_and(|quorum| quorum < table.replicas);
        let builds = table.replicas > 2 && table.backups == BackupMode::BuildIndex && is_patient;
        let is_far = if has_quorum || builds { !rng.one_in(5) } else { rng.one_in(6) };
        let extra = if has_quorum || !is_patient { 30 } else { 140 };
        let far = (1 + rng.index(2), Nanos::from_millis(extra));
        Traits {
            preset,
            is_patient,
            far: Some(far).filter(|_| nodes > 1 && is_far),
            is_balanced: nodes > 1 && rng.one_in(3),
            theme: Theme::choose(nodes, table, rng),
        }
    }
}

/// First keys of regions, so that each has some of the keys that are used.
const MANY_SPLITS: [&[u8]; 5] = [b"h", b"k000020", b"m", b"q000021", b"v"];

/// The first keys of regions after the first: one, two or six regions. Where keys are partitioned by hash there are as many tokens
/// instead.
fn splits(table: &mut TableOptions, rng: &mut Rng) -> Vec<Bytes> {
    let splits: &[&'static [u8]] = match rng.index(3) {
        0 => &[],
        1 => &[b"m"],
        _ => &MANY_SPLITS,
    };
    if table.partition.is_hash() {
        table.partition = Partition::Hash { tokens: splits.len() as u32 + 1 };
        return Vec::new();
    }
    splits.iter().copied().map(Bytes::from_static).collect()
}

#[cfg(test)]
#[path = "character_tests.rs"]
mod tests;
