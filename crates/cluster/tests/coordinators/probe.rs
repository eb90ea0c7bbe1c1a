//! A client that checks the guarantees of every coordinator at each event.

use leeward_cluster::{
    Change, Client, Coordinator, CoordinatorError, CoordinatorEvent, CoordinatorOp, Outage, SessionId,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A client of either kind, which can also be abandoned.
pub(crate) trait Actor: Coordinator {
    /// Stops without ending the session.
    fn abandon(self: Box<Self>);
}

impl Actor for Client {
    fn abandon(self: Box<Self>) {
        Client::abandon(*self);
    }
}

/// The receiver of events.
pub(crate) type Sink = Box<dyn FnMut(CoordinatorEvent) + Send>;

/// The tree at one version.
pub(crate) type State = BTreeMap<String, (u64, Vec<u8>)>;

#[derive(Default)]
struct Seen {
    session: Option<SessionId>,
    is_up: bool,
    is_synced: bool,
    version: u64,
    tree: State,
    gathered: State,
    /// The tree after each event that changed it, by version.
    history: BTreeMap<u64, State>,
    asked: BTreeMap<u64, ()>,
    answers: BTreeMap<u64, Result<u64, CoordinatorError>>,
}

/// A client, and the events that it was told.
pub(crate) struct Probe {
    client: Box<dyn Actor>,
    events: Receiver<(Instant, CoordinatorEvent)>,
    seen: RefCell<Seen>,
}

/// A sink for a client's events, and the channel at which they come out.
pub(crate) fn sink() -> (Sink, Receiver<(Instant, CoordinatorEvent)>) {
    let (sender, events): (Sender<_>, _) = channel();
    (Box::new(move |event| drop(sender.send((Instant::now(), event)))), events)
}

impl Probe {
    /// A probe that checks the `events` of `client`.
    pub(crate) fn new(client: Box<dyn Actor>, events: Receiver<(Instant, CoordinatorEvent)>) -> Probe {
        Probe { client, events, seen: RefCell::default() }
    }

    /// The next event, and when it came.
    pub(crate) fn next(&self) -> (Instant, CoordinatorEvent) {
        let (at, event) = self.events.recv_timeout(LONG).unwrap_or_else(|_| panic!("an event: {:?}", self.outage()));
        self.seen.borrow_mut().check(&event);
        (at, event)
    }

    /// Takes events until one is `wanted`. Returns when that came.
    pub(crate) fn until(&self, wanted: impl Fn(&CoordinatorEvent) -> bool) -> Instant {
        loop {
            let (at, event) = self.next();
            if wanted(&event) {
                return at;
            }
        }
    }

    /// Takes events until the tree is as `wanted`. Returns when the last one came.
    pub(crate) fn until_tree(&self, wanted: impl Fn(&State) -> bool) -> Instant {
        let mut at = Instant::now();
        while !wanted(&self.tree()) {
            at = self.next().0;
        }
        at
    }

    /// Waits for the whole tree. Returns the session.
    pub(crate) fn synced(&self) -> SessionId {
        self.until(|event| matches!(event, CoordinatorEvent::Synced { .. }));
        self.session()
    }

    /// The session that was told last.
    pub(crate) fn session(&self) -> SessionId {
        self.seen.borrow().session.expect("a session")
    }

    /// Takes the events that were told already, and returns them.
    pub(crate) fn catch_up(&self) -> Vec<CoordinatorEvent> {
        let told: Vec<_> = self.events.try_iter().map(|(_, event)| event).collect();
        told.iter().for_each(|event| self.seen.borrow_mut().check(event));
        told
    }

    /// Submits an operation without waiting.
    pub(crate) fn ask(&self, id: u64, op: CoordinatorOp) {
        assert!(self.seen.borrow_mut().asked.insert(id, ()).is_none(), "{id} was used");
        self.client.submit(id, op);
    }

    /// The answer to operation `id`.
    pub(crate) fn answer(&self, id: u64) -> Result<u64, CoordinatorError> {
        while !self.seen.borrow().answers.contains_key(&id) {
            self.next();
        }
        self.seen.borrow().answers[&id].clone()
    }

    /// Submits an operation and waits for the answer.
    pub(crate) fn submit(&self, op: CoordinatorOp) -> Result<u64, CoordinatorError> {
        let id = 1_000_000 + self.seen.borrow().asked.len() as u64;
        self.ask(id, op);
        self.answer(id)
    }

    /// The tree that was told last.
    pub(crate) fn tree(&self) -> State {
        self.seen.borrow().tree.clone()
    }

    /// The told version of the last change of a path.
    pub(crate) fn version(&self, path: &str) -> u64 {
        self.seen.borrow().tree[path].0
    }

    /// The trees that were told, by version.
    pub(crate) fn history(&self) -> BTreeMap<u64, State> {
        self.seen.borrow().history.clone()
    }

    /// Why there is no session.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.client.outage()
    }

    /// What the operator should change.
    pub(crate) fn concern(&self) -> Option<String> {
        self.client.concern()
    }

    /// Ends the client as if its process had been killed.
    pub(crate) fn abandon(self) {
        self.client.abandon();
    }
}

impl Seen {
    fn check(&mut self, event: &CoordinatorEvent) {
        match event {
            CoordinatorEvent::Up { session } => {
                assert!(!self.is_up, "up twice");
                assert!(self.session.is_none_or(|before| before == *session), "another session, without `Expired`");
                (self.is_up, self.is_synced, self.session) = (true, false, Some(*session));
                self.gathered.clear();
            }
            CoordinatorEvent::Down => assert!(std::mem::take(&mut self.is_up), "down without having been up"),
            CoordinatorEvent::Expired => {
                assert!(!self.is_up && self.session.take().is_some(), "expired while it was up, or without a session");
            }
            CoordinatorEvent::Changed(changes) => self.change(changes),
            CoordinatorEvent::Synced { version } => {
                assert!(self.is_up && !self.is_synced, "synced once a session");
                assert!(*version >= self.version, "the tree went back to {version} from {}", self.version);
                assert!(self.gathered.values().all(|(made, _)| made <= version), "the tree is older than its paths");
                self.tree = std::mem::take(&mut self.gathered);
                (self.version, self.is_synced) = (*version, true);
                self.remember();
            }
            CoordinatorEvent::Reply { id, result } => {
                assert!(self.asked.contains_key(id), "an answer to {id}, which was not asked");
                assert!(self.answers.insert(*id, result.clone()).is_none(), "{id} was answered twice");
                if let Ok(version) = result {
                    assert!(self.version >= *version, "answered with {version}, told {}", self.version);
                }
                if let Err(CoordinatorError::Exists { version } | CoordinatorError::Stale { version }) = result {
                    assert!(self.version >= *version, "refused for {version}, told {}", self.version);
                }
            }
        }
    }

    fn change(&mut self, changes: &[Change]) {
        assert!(self.is_up && !changes.is_empty(), "changes without a session, or none");
        assert!(changes.is_sorted_by_key(|change| change.version), "{changes:?} do not ascend");
        for (index, change) in changes.iter().enumerate() {
            assert!(changes[..index].iter().all(|other| other.path != change.path), "{} twice", change.path);
            if self.is_synced {
                assert!(change.version > self.version, "{change:?} after {}", self.version);
            }
            let tree = if self.is_synced { &mut self.tree } else { &mut self.gathered };
            match &change.value {
                Some(value) => drop(tree.insert(change.path.clone(), (change.version, value.to_vec()))),
                None => drop(tree.remove(&change.path)),
            }
        }
        if self.is_synced {
            self.version = changes.last().expect("not empty").version;
            self.remember();
        }
    }

    fn remember(&mut self) {
        let known = self.history.insert(self.version, self.tree.clone());
        assert!(known.is_none_or(|known| known == self.tree), "two trees at version {}", self.version);
    }
}
