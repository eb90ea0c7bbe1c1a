//! The index against a plain list of regions and tables, after any changes.

use super::*;
use crate::cluster::Member;
use crate::op::{Op, RangeOp, ScanRange};
use crate::{Incarnation, ServerId, VolumeId};
use proptest::prelude::*;

const TABLES: [&str; 3] = ["a", "b", "bb"];
const KEYS: [&str; 5] = ["", "f", "ff", "m", "t"];

fn region(id: u32, table: &str, start: &str, end: Option<&str>, epoch: u32) -> Arc<GroupConfig> {
    Arc::new(GroupConfig {
        start: Bytes::copy_from_slice(start.as_bytes()),
        end: end.map(|end| Bytes::copy_from_slice(end.as_bytes())),
        epoch: Epoch(epoch),
        term: Epoch(epoch),
        primary: Some(Member { server: ServerId(1), volume: VolumeId(1), incarnation: Incarnation(1) }),
        ..GroupConfig::unassigned(RegionId(id), table)
    })
}

/// The present regions and tables, as lists.
#[derive(Default)]
struct Model {
    tables: BTreeSet<&'static str>,
    regions: Vec<Arc<GroupConfig>>,
}

impl Model {
    /// The regions of a table by first key; of those that begin at one, the one with the highest number.
    fn of(&self, table: &str) -> Vec<Arc<GroupConfig>> {
        let mut of_it: Vec<_> = self.regions.iter().filter(|region| region.table == table).cloned().collect();
        of_it.sort_by(|left, right| (&left.start, right.region).cmp(&(&right.start, left.region)));
        of_it.dedup_by(|next, first| next.start == first.start);
        if self.tables.contains(table) { of_it } else { Vec::new() }
    }

    /// Those of a table that begin where others begin, by number.
    fn hidden(&self, table: &str) -> Vec<&Arc<GroupConfig>> {
        let shown = self.of(table);
        let mut hidden: Vec<_> = self.regions.iter().filter(|region| region.table == table).collect();
        hidden.retain(|region| !shown.is_empty() && !shown.contains(region));
        hidden.sort_by_key(|region| region.region);
        hidden
    }

    fn check(&self, index: &RouteIndex<Arc<GroupConfig>>) {
        assert_eq!((index.len(), index.is_empty()), (self.regions.len(), self.regions.is_empty()));
        for table in TABLES {
            let of_it = self.of(table);
            assert_eq!(index.has_table(table), self.tables.contains(table));
            assert_eq!(index.regions_of(table).cloned().collect::<Vec<_>>(), of_it);
            for key in KEYS.into_iter().chain(["a", "fff", "z"]) {
                let up_to = of_it.iter().rfind(|region| region.start <= key);
                let holds = |region: &&Arc<GroupConfig>| region.contains(key.as_bytes());
                let found = up_to.filter(holds).or_else(|| self.hidden(table).into_iter().find(holds));
                assert_eq!(index.region_of(table, key.as_bytes()), found, "{table} {key}");
                let below = of_it.iter().rfind(|region| region.start < key).or(of_it.first());
                assert_eq!(index.region_below(table, Some(key.as_bytes())), below, "{table} below {key}");
            }
            assert_eq!(index.region_below(table, None), of_it.last());
        }
        for id in 0..8 {
            assert_eq!(index.region(RegionId(id)), self.regions.iter().find(|region| region.region.0 == id));
        }
        // An index that is told the same in another order has the same digest.
        let mut again = RouteIndex::default();
        self.regions.iter().rev().for_each(|region| again.put(region.clone()));
        self.tables.iter().for_each(|table| again.set_table(table, Some(Partition::Range)));
        assert_eq!(again.digest(), index.digest());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32, usize, usize, Option<usize>, u32),
    Remove(u32),
    Table(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let put = (0..8_u32, 0..TABLES.len(), 0..KEYS.len(), prop::option::of(0..KEYS.len()), 0..4_u32);
    prop_oneof![
        4 => put.prop_map(|(id, table, start, end, epoch)| Step::Put(id, table, start, end, epoch)),
        2 => (0..8_u32).prop_map(Step::Remove),
        1 => (0..TABLES.len(), any::<bool>()).prop_map(|(table, is_there)| Step::Table(table, is_there)),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_and_goes_the_same_is_found(steps in prop::collection::vec(step(), 1..40)) {
        let (mut index, mut model) = (RouteIndex::default(), Model::default());
        for step in steps {
            match step {
                Step::Put(id, table, start, end, epoch) => {
                    let region = region(id, TABLES[table], KEYS[start], end.map(|end| KEYS[end]), epoch);
                    model.regions.retain(|other| other.region != region.region);
                    model.regions.push(region.clone());
                    index.put(region);
                }
                Step::Remove(id) => {
                    let there = model.regions.iter().position(|region| region.region.0 == id);
                    let removed = there.map(|at| model.regions.remove(at));
                    prop_assert_eq!(index.remove(RegionId(id)), removed);
                }
                Step::Table(table, true) => {
                    model.tables.insert(TABLES[table]);
                    index.set_table(TABLES[table], Some(Partition::Range));
                }
                Step::Table(table, false) => {
                    model.tables.remove(TABLES[table]);
                    index.set_table(TABLES[table], None);
                }
            }
            model.check(&index);
        }
    }
}

#[test]
fn a_digest_tells_epochs_regions_and_tables_apart() {
    let of = |region: Option<Arc<GroupConfig>>, table: Option<&str>| {
        let mut index = RouteIndex::default();
        region.into_iter().for_each(|region| index.put(region));
        table.into_iter().for_each(|table| index.set_table(table, Some(Partition::Range)));
        index.digest()
    };
    let some = |id, epoch| Some(region(id, "a", "", None, epoch));
    let all = [of(None, None), of(some(1, 1), None), of(some(1, 2), None), of(some(2, 1), None), of(None, Some("a"))];
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    assert_eq!(all[0], 0);
}

#[test]
fn an_operation_goes_to_the_region_of_its_key_or_bound() {
    let mut index = RouteIndex::default();
    index.set_table("a", Some(Partition::Range));
    for (id, start, end) in [(1, "", Some("h")), (2, "h", Some("p")), (3, "p", None)] {
        index.put(region(id, "a", start, end, 1));
    }
    let to = |op: &Op| op.region_in(&index, "a").map(|region| region.region.0);
    let scan = |start: &'static str, end: Option<&'static str>, reverse| {
        let op =
            Op::Scan(ScanRange { start: start.into(), end: end.map(Bytes::from), reverse, limit: 1, keys_only: false });
        op.region_in(&index, "a").map(|region| region.region.0)
    };
    assert_eq!((to(&Op::Get { key: "a".into() }), to(&Op::Get { key: "h".into() })), (Some(1), Some(2)));
    assert_eq!((scan("", Some("z"), false), scan("i", None, false)), (Some(1), Some(2)));
    assert_eq!((scan("a", Some("i"), true), scan("a", Some("h"), true)), (Some(2), Some(1)), "the end is excluded");
    assert_eq!(
        (scan("a", None, true), scan("", Some(""), true)),
        (Some(3), Some(1)),
        "an empty range is asked somewhere"
    );
    assert_eq!((to(&Op::Count { region: RegionId(3) }), to(&Op::Count { region: RegionId(9) })), (Some(3), None));
    assert_eq!(Op::Get { key: "a".into() }.region_in(&index, "b"), None);
}

#[test]
fn where_keys_are_partitioned_by_hash_their_tokens_decide() {
    for partition in [Partition::Hash { tokens: 3 }, Partition::Slots { tokens: 3 }] {
        tokens_decide(partition);
    }
}

fn tokens_decide(partition: Partition) {
    let mut index = RouteIndex::default();
    index.set_table("a", Some(partition));
    let starts: Vec<Bytes> = std::iter::once(Bytes::new()).chain(partition.splits()).collect();
    for (at, start) in starts.iter().enumerate() {
        let of = GroupConfig::unassigned(RegionId(at as u32 + 1), "a");
        index.put(Arc::new(GroupConfig { start: start.clone(), end: starts.get(at + 1).cloned(), ..of }));
    }
    let found: BTreeSet<u32> = (0..100)
        .map(|number| {
            let key = format!("key-{number}");
            let place = partition.place(key.as_bytes());
            let region = Op::Get { key: key.clone().into() }.region_in(&index, "a").expect("one has it");
            assert!(region.contains(&place));
            region.region.0
        })
        .collect();
    assert_eq!(found, BTreeSet::from([1, 2, 3]));
    assert_eq!(index.spread("a"), Spread::All([1, 2, 3].map(RegionId).into()));
    let second = index.remove(RegionId(2)).expect("it was there");
    assert_eq!(index.spread("a"), Spread::Unknown, "an answer without it would be a part");
    index.put(second);
    assert_eq!(index.spread("b"), Spread::InOrder);

    let range = RangeOp::Approximate { start: "a".into(), end: None };
    let (plain, named) = (Op::from(range.clone()), range.within(RegionId(2)));
    assert_eq!((named.clone().plain(), plain.clone().within(RegionId(2))), (plain.clone(), named.clone()));
    assert!(plain.lacks_region(&index, "a") && plain.region_in(&index, "a").is_none());
    assert!(!named.lacks_region(&index, "a"));
    assert_eq!(named.region_in(&index, "a").map(|region| region.region.0), Some(2));
    assert!(!plain.lacks_region(&index, "b"), "what is not there lacks nothing");

    // A table that is made anew under the name, with another partition, is another table.
    let before = index.digest();
    for other in [Partition::Range, Partition::Hash { tokens: 4 }, Partition::Slots { tokens: 4 }] {
        index.set_table("a", Some(other));
        assert_ne!(index.digest(), before);
    }
    let slots = index.digest();
    index.set_table("a", Some(Partition::Hash { tokens: 4 }));
    assert_ne!(index.digest(), slots);
    index.set_table("a", None);
    index.set_table("a", Some(partition));
    assert_eq!(index.digest(), before);
}
