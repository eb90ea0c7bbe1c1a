//! Two readers and a writer, step by step: it shows that the pairs of schedules of one reader, which the other tests
//! compare, leave nothing out.

use super::*;

/// Two readers and the writer, step by step. Readers are known by the position of their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Both {
    written: usize,
    readers: [Phase; 2],
    /// The oldest version that a reader may return that begins now, as far as others have returned it.
    least: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Waiting,
    /// In this state; the oldest version that it may return.
    Reading(usize, usize),
    Done,
}

/// All schedules of two readers of a key and the writer, and whether some schedule has a fault.
struct Pairs<'a> {
    one: Schedules<'a>,
    ids: HashMap<State, usize>,
    states: Vec<State>,
    known: HashMap<Both, (u128, bool)>,
}

impl Pairs<'_> {
    fn run(&mut self, now: Both) -> (u128, bool) {
        if now.readers == [Phase::Done; 2] {
            return (1, false);
        }
        if let Some(known) = self.known.get(&now) {
            return *known;
        }
        let (mut schedules, mut is_faulty) = (0, false);
        for (next, fault) in self.steps(now) {
            let (more, faulty) = self.run(next);
            schedules += more;
            is_faulty |= fault || faulty;
        }
        self.known.insert(now, (schedules, is_faulty));
        (schedules, is_faulty)
    }

    /// Every step of one of the three, and whether a reader ends with it as it must not.
    fn steps(&mut self, now: Both) -> Vec<(Both, bool)> {
        let mut steps = Vec::new();
        if now.written + 1 < self.one.memory.len() {
            let (mut next, mut fault) = (Both { written: now.written + 1, ..now }, false);
            for reader in 0..2 {
                if let Phase::Reading(id, least) = now.readers[reader] {
                    let state = State { written: next.written, ..self.states[id] };
                    fault |= self.enter(&mut next, reader, state, least);
                }
            }
            steps.push((next, fault));
        }
        for reader in 0..2 {
            let (states, least) = match now.readers[reader] {
                Phase::Waiting => {
                    let replaced = self.one.versions.iter().rposition(|version| version.acknowledged <= now.written);
                    (vec![self.one.begin(now.written)], replaced.unwrap_or(0).max(now.least))
                }
                Phase::Reading(id, least) => {
                    let state = self.states[id];
                    (unread(&state).map(|word| self.one.with(state, word)).collect(), least)
                }
                Phase::Done => continue,
            };
            for state in states {
                let mut next = now;
                let fault = self.enter(&mut next, reader, state, least);
                steps.push((next, fault));
            }
        }
        steps
    }

    /// Puts a reader into a state, or ends it; whether it ends as it must not.
    fn enter(&mut self, both: &mut Both, reader: usize, state: State, least: usize) -> bool {
        match self.one.advance(state) {
            Ok(state) => {
                let fresh = self.states.len();
                let id = *self.ids.entry(state).or_insert(fresh);
                if id == fresh {
                    self.states.push(state);
                }
                both.readers[reader] = Phase::Reading(id, least);
                false
            }
            Err(outcome) => {
                both.readers[reader] = Phase::Done;
                let version = outcome.checked_sub(FOUND);
                both.least = both.least.max(version.unwrap_or(0));
                outcome == WRONG || version.is_some_and(|version| version < least)
            }
        }
    }
}

/// What the pairs of schedules say is what two readers say that are run step by step.
#[test]
fn two_readers_step_by_step_show_the_same() {
    let cases: [(&[Op], Option<Broken>); 6] = [
        (&[PUT, PUT], None),
        (&[PUT, DELETE, PUT], None),
        (&[PUT, PUT, PUT], None),
        (&[PUT, PUT, PUT], Some(Broken::BytesBeforeSlot)),
        (&[PUT, PUT, PUT], Some(Broken::ReuseUnpoisoned)),
        (&[PUT, DELETE], Some(Broken::KeepDeletedSlots)),
    ];
    for (script, broken) in cases {
        let mut writer = Writer::new(0, 1 << 12, broken);
        let (start, grant) = (writer.memory(), grant());
        assert!(script.iter().all(|op| writer.run(*op)), "each operation has something to do");
        let one = Schedules::new(&grant, start.clone(), &writer, 0);
        let mut pairs = Pairs { one, ids: HashMap::new(), states: Vec::new(), known: HashMap::new() };
        let (schedules, is_faulty) = pairs.run(Both { written: 0, readers: [Phase::Waiting; 2], least: 0 });
        println!("{script:?}, {broken:?}: {schedules:.1e} schedules of two readers, {} states", pairs.known.len());
        assert_eq!(is_faulty, !judge(&grant, &start, &writer, 0).faults.is_empty(), "{script:?}, {broken:?}");
        assert_eq!(is_faulty, broken.is_some());
    }
}
