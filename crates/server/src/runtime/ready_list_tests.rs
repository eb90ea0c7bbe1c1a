//! Everything that two clients, the loop and time may do, step by step and in any order, up to a depth: what a client does
//! happens in parts, between which others act, as do the writes of the words by which the loop says that it is awake.

use super::*;
use std::collections::{HashMap, VecDeque};

const MOST_DEFERRED: u32 = 2;
/// Requests that a look takes at most.
const TURN_MESSAGES: u8 = 2;
const DEPTH: usize = 10;
const CLIENTS: [usize; 2] = [0, 1];

/// The write under way of the word that says whether the loop is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Settled,
    Posted(bool),
    Landed(bool),
    /// The loop will get its completion.
    Completed(bool),
}

/// A client, its ring, its connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    in_ring: u8,
    /// It has put something into its ring, and did not look yet whether it must ring.
    has_landed: bool,
    /// The state of the loop that it sees.
    sees_awake: bool,
    word: Word,
    is_wanted: bool,
    bells: u8,
    /// A request in the socket, and whether a tick has passed since the loop got an event of it.
    request: Option<bool>,
    is_closed: bool,
    /// The poll will report the socket.
    event: bool,
    takes: bool,
    is_gone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ready_list: ReadyList,
    /// Nothing came for the spin.
    is_late: bool,
    is_tick_due: bool,
    clients: [Client; 2],
    /// The poll of a turn is over, the rest is to come.
    turn: Option<Turn>,
}

/// What a turn must do for each client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Turn {
    /// Its socket has ended.
    ends: [bool; 2],
    /// It has a request for longer than a tick.
    is_overdue: [bool; 2],
    /// It has bytes in its socket and nothing in its ring.
    has_only_bytes: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Send(usize),
    ReadWord(usize),
    AskMap(usize),
    Close(usize),
    /// Its session stops accepting input, or accepts some again.
    Turnabout(usize),
    Advance(usize),
    SpinEnds,
    Tick,
    /// A turn begins: what is to be done before it, and its poll.
    Poll {
        is_busy: bool,
    },
    /// The rest of the turn.
    Work,
}

const SPIN: Nanos = Nanos(9);

impl Client {
    fn has_bytes(&self) -> bool {
        self.bells > 0 || self.request.is_some() || self.is_closed
    }

    fn advance_word(&mut self) {
        self.word = match self.word {
            Word::Posted(is_awake) => {
                self.sees_awake = is_awake;
                Word::Landed(is_awake)
            }
            Word::Landed(is_awake) => Word::Completed(is_awake),
            other => other,
        };
    }

    /// As `rings::ring::Ring::set_awake`; `posted` is what was posted last.
    fn set_awake(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
        if self.word == Word::Settled && self.sees_awake != is_wanted {
            self.word = Word::Posted(is_wanted);
        }
    }
}

impl State {
    fn new(spin: Nanos) -> State {
        let client = Client {
            in_ring: 0,
            has_landed: false,
            sees_awake: false,
            word: Word::Settled,
            is_wanted: false,
            bells: 0,
            request: None,
            is_closed: false,
            event: false,
            takes: true,
            is_gone: false,
        };
        let clients = [client.clone(), client];
        let ready_list = ReadyList::new(spin, MOST_DEFERRED);
        State { ready_list, is_late: false, is_tick_due: false, clients, turn: None }
    }

    fn now(&self) -> Nanos {
        if self.is_late { SPIN } else { Nanos::ZERO }
    }

    fn is_possible(&self, act: Act) -> bool {
        let alive = |id: usize| !self.clients[id].is_gone && !self.clients[id].is_closed;
        match act {
            Act::Send(id) => alive(id) && !self.clients[id].has_landed && self.clients[id].in_ring < 3,
            Act::ReadWord(id) => alive(id) && self.clients[id].has_landed,
            Act::AskMap(id) => alive(id) && self.clients[id].request.is_none(),
            Act::Close(id) => alive(id),
            Act::Turnabout(id) => !self.clients[id].is_gone && self.turn.is_none(),
            Act::Advance(id) => matches!(self.clients[id].word, Word::Posted(_) | Word::Landed(_)),
            Act::SpinEnds => !self.is_late && self.turn.is_none(),
            Act::Tick => !self.is_tick_due && self.turn.is_none(),
            Act::Poll { .. } => self.turn.is_none(),
            Act::Work => self.turn.is_some(),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Send(id) => {
                self.clients[id].in_ring += 1;
                self.clients[id].has_landed = true;
            }
            Act::ReadWord(id) => {
                let client = &mut self.clients[id];
                client.has_landed = false;
                if !client.sees_awake {
                    client.bells = 3.min(client.bells + 1);
                    client.event = true;
                }
            }
            Act::AskMap(id) => (self.clients[id].request, self.clients[id].event) = (Some(false), true),
            Act::Close(id) => {
                let client = &mut self.clients[id];
                (client.is_closed, client.event, client.has_landed) = (true, true, false);
            }
            Act::Turnabout(id) => {
                self.clients[id].takes ^= true;
                if self.clients[id].takes {
                    self.ready_list.takes(id as u64);
                }
            }
            Act::Advance(id) => self.clients[id].advance_word(),
            Act::SpinEnds => self.is_late = true,
            Act::Tick => self.is_tick_due = true,
            Act::Poll { is_busy } => self.poll(is_busy),
            Act::Work => self.work(),
        }
    }

    /// The first half of a turn of the loop, as `event_loop.rs` takes it.
    fn poll(&mut self, is_busy: bool) {
        let before = self.ready_list.before(self.now(), is_busy);
        if before == Before::FallAsleep {
            self.clients.iter_mut().for_each(|client| client.set_awake(false));
        }
        assert!(!(self.is_late && self.ready_list.is_awake), "it falls asleep, however busy it is");
        let is_overdue = self.clients.each_ref().map(|client| client.request == Some(true) && client.takes);
        let (mut ends, mut has_only_bytes) = ([false; 2], [false; 2]);
        for (id, client) in self.clients.iter_mut().enumerate() {
            if std::mem::take(&mut client.event) {
                ends[id] = client.is_closed && client.takes;
                has_only_bytes[id] = client.in_ring == 0 && client.takes;
                self.ready_list.told(id as u64, true, client.is_closed);
            }
        }
        self.turn = Some(Turn { ends, is_overdue, has_only_bytes });
    }

    /// The second half.
    fn work(&mut self) {
        let Turn { ends, is_overdue, mut has_only_bytes } = self.turn.take().expect("a turn has begun");
        for id in CLIENTS {
            has_only_bytes[id] &= self.clients[id].in_ring == 0;
        }
        self.read_rings();
        self.read_sockets();
        if std::mem::take(&mut self.is_tick_due) {
            self.ready_list.tick();
            // A client whose event came in this turn or before has nothing more to wait for.
            let told = self.clients.iter_mut().filter(|client| !client.event);
            told.filter_map(|client| client.request.as_mut()).for_each(|has_ticked| *has_ticked = true);
        }
        self.settle();
        for id in CLIENTS {
            assert!(!ends[id] || self.clients[id].is_gone, "the end is read in the turn of its event");
            assert!(
                !is_overdue[id] || self.clients[id].request.is_none(),
                "a request is read in the turn after a tick"
            );
            let is_read = !self.clients[id].has_bytes() || self.clients[id].is_gone;
            assert!(!has_only_bytes[id] || is_read, "what is no bell is read at once");
        }
    }

    fn read_rings(&mut self) {
        let has_some = |id: &usize| self.clients[*id].in_ring > 0 && !self.clients[*id].is_gone;
        let waiting: Vec<u64> = CLIENTS.iter().filter(|id| has_some(id)).map(|id| *id as u64).collect();
        let look = self.ready_list.turn(waiting.iter().copied());
        for id in waiting {
            let is_looked_at = look.contains(&id) || !self.clients[id as usize].takes;
            assert!(!self.ready_list.is_awake || is_looked_at, "a loop that is awake looks in every turn");
        }
        for id in look {
            let client = &mut self.clients[id as usize];
            if client.is_gone {
                continue;
            }
            if !client.takes {
                self.ready_list.looked(id, RingLook::Held, Nanos::ZERO);
                continue;
            }
            let taken = client.in_ring.min(TURN_MESSAGES);
            client.in_ring -= taken;
            let found = match taken {
                0 => RingLook::Nothing,
                _ => RingLook::Requests { has_more: taken == TURN_MESSAGES },
            };
            // Time is counted from the last request, so it begins anew.
            self.is_late &= taken == 0;
            if self.ready_list.looked(id, found, Nanos::ZERO) {
                client.set_awake(true);
            }
        }
    }

    fn read_sockets(&mut self) {
        for id in self.ready_list.take_readable() {
            let client = &mut self.clients[id as usize];
            if client.takes {
                // The poll reports the end, and not bytes that are gone.
                (client.bells, client.request, client.event) = (0, None, client.event && client.is_closed);
            }
            client.is_gone = client.takes && client.is_closed;
            self.ready_list.read(id, true, client.has_bytes() && !client.takes, client.takes);
            if client.is_gone {
                (client.in_ring, client.word) = (0, Word::Settled);
                self.ready_list.remove(id);
            }
        }
    }

    fn settle(&mut self) {
        for id in CLIENTS {
            let client = &mut self.clients[id];
            let Word::Completed(is_awake) = client.word else { continue };
            client.word = Word::Settled;
            if !is_awake {
                self.ready_list.look(id as u64);
            }
            client.set_awake(client.is_wanted);
        }
    }

    /// Checks what must hold between any two acts.
    fn check(&self) {
        for (id, client) in self.clients.iter().enumerate().filter(|(_, client)| !client.is_gone) {
            let (id, book) = (id as u64, &self.ready_list);
            let is_known = book.due.contains(&id) || book.left.contains_key(&id);
            assert!(!client.has_bytes() || client.event || is_known, "bytes of {id} are forgotten");
            assert!(book.left.get(&id).is_none_or(|left| *left <= MOST_DEFERRED), "many are not left");
            assert!(!book.due.contains(&id) || !book.left.contains_key(&id), "what is due is not left");
            let is_due = book.due.contains(&id) && client.takes;
            assert!(!is_due || book.readable.contains(&id), "what is due is read, if it is taken");
        }
        let nothing_comes = |client: &Client| {
            client.is_gone || !client.event && !client.has_landed && client.word == Word::Settled && !client.is_closed
        };
        let may_sleep = self.turn.is_none() && self.ready_list.clone().before(self.now(), false) == Before::Sleep;
        if may_sleep && self.clients.iter().all(nothing_comes) {
            let is_empty = |client: &Client| client.in_ring == 0 || !client.takes;
            assert!(self.clients.iter().all(is_empty), "it sleeps, and nothing will wake it for what is in a ring");
        }
    }

    /// Whatever was going on comes to an end, no request is forgotten, and then the loop sleeps.
    fn settles(&self) {
        let mut state = self.clone();
        if state.turn.is_some() {
            state.work();
        }
        for round in 0..16 {
            for id in CLIENTS {
                for act in [Act::ReadWord(id), Act::Advance(id), Act::Advance(id)] {
                    if state.is_possible(act) {
                        state.act(act);
                    }
                }
            }
            let nothing_comes = |client: &Client| !client.event && client.word == Word::Settled;
            let is_done = state.clients.iter().all(nothing_comes) && round > 8;
            state.is_late = true;
            if is_done && state.ready_list.clone().before(state.now(), false) == Before::Sleep {
                let is_empty = |client: &Client| client.in_ring == 0 || !client.takes;
                return assert!(state.clients.iter().all(is_empty), "it sleeps although something is in a ring");
            }
            state.is_tick_due = round == 4;
            state.poll(false);
            state.work();
        }
        panic!("it never sleeps");
    }
}

fn acts() -> Vec<Act> {
    let mut acts = vec![Act::SpinEnds, Act::Tick, Act::Poll { is_busy: false }, Act::Poll { is_busy: true }, Act::Work];
    for id in CLIENTS {
        acts.extend([Act::Send(id), Act::ReadWord(id), Act::AskMap(id), Act::Close(id)]);
        acts.extend([Act::Turnabout(id), Act::Advance(id)]);
    }
    acts
}

/// How `state` was reached, for the message of a failed check.
fn path(from: &HashMap<State, Option<(State, Act)>>, state: &State) -> Vec<Act> {
    let mut path = VecDeque::new();
    let mut at = state;
    while let Some(Some((before, act))) = from.get(at) {
        path.push_front(*act);
        at = before;
    }
    path.into()
}

/// A loop that has nothing to do but that a client was served.
fn served(spin: Nanos) -> State {
    let mut state = State::new(spin);
    let turn = [Act::Poll { is_busy: false }, Act::Work];
    let acts = [Act::Send(0), Act::ReadWord(0)].into_iter().chain(turn).chain([Act::Advance(0); 2]).chain(turn);
    for act in acts {
        if state.is_possible(act) {
            state.act(act);
        }
    }
    state
}

/// Checks all states that can be reached in [`DEPTH`] acts; returns how many there are.
fn enumerate(spin: Nanos) -> usize {
    let mut layer = vec![State::new(spin), served(spin)];
    let mut from: HashMap<State, Option<(State, Act)>> = layer.iter().map(|first| (first.clone(), None)).collect();
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for state in layer {
            for act in acts().into_iter().filter(|act| state.is_possible(*act)) {
                let mut then = state.clone();
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    then.act(act);
                    if !from.contains_key(&then) {
                        then.check();
                        then.settles();
                    }
                }));
                if let Err(panic) = outcome {
                    eprintln!("after {:?}, {act:?}: {then:#?}", path(&from, &state));
                    std::panic::resume_unwind(panic);
                }
                if !from.contains_key(&then) {
                    from.insert(then.clone(), Some((state.clone(), act)));
                    next.push(then);
                }
            }
        }
        layer = next;
    }
    let is_ever_awake = from.keys().any(|state| state.clients.iter().any(|client| client.sees_awake));
    assert_eq!(is_ever_awake, spin > Nanos::ZERO);
    from.len()
}

#[test]
fn whatever_happens_no_client_is_forgotten_by_a_loop_that_never_spins() {
    let states = enumerate(Nanos::ZERO);
    assert!(states > 100_000, "{states} states");
}

#[test]
fn whatever_happens_no_client_is_forgotten_by_a_loop_that_spins() {
    let states = enumerate(SPIN);
    assert!(states > 100_000, "{states} states");
}
