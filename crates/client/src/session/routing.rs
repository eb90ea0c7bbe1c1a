//! The routes of a session: which node it asks for them, when it accepts an update, and which node an operation goes
//! to.
//!
//! Belongs to the session's thread.

use super::{Session, TICK};
use crate::link::{Link, Pending};
use crate::options::ClientError;
use leeward_format::RegionId;
use leeward_format::cluster::{RegionMap, Scans};
use leeward_format::op::{Op, OpError, Request};
use leeward_format::routes::{Applied, RouteCache, RoutesUpdate};
use leeward_format::routing::Spread;
use leeward_format::table::TableName;
use mio::Token;
use std::time::{Duration, Instant};

/// How old routes may be before a session that is in use asks whether there are newer ones.
const REFRESH: Duration = Duration::from_secs(5);

/// Which node a session asks for routes or the region map, and when it asked last.
#[derive(Default)]
pub(super) struct Asking {
    next: usize,
    /// How many reads went to any member so far.
    turns: usize,
    asked: Option<Instant>,
    /// Answers about routes so far.
    pub(super) answers: u64,
    /// The region map, if one has come since it was asked for.
    map: Option<RegionMap>,
}

impl Session {
    /// Asks a node for its region map now. A map that is older than the known routes is not accepted.
    ///
    /// # Errors
    /// No node answers within [`crate::ClientOptions::deadline`].
    pub fn fetch_map(&mut self) -> Result<RegionMap, ClientError> {
        (self.asking.asked, self.asking.map) = (None, None);
        self.ask_until(Instant::now() + self.options.deadline, |session| session.asking.map.take(), |_| Request::Map)
    }

    /// The regions of `table` that an operation on a range of keys goes to. Asks for routes if they are not known.
    ///
    /// # Errors
    /// As [`Session::fetch_map`]; or not all regions of the table are known in time.
    pub(crate) fn spread(&mut self, table: &TableName) -> Result<Spread, ClientError> {
        let deadline = Instant::now() + self.options.deadline;
        if !self.routes.regions().has_table(table) {
            self.fetch_routes_until(deadline)?;
        }
        loop {
            match self.routes.regions().spread(table) {
                Spread::Unknown if Instant::now() >= deadline => {
                    return Err(OpError::Recovering(RegionId(0)).into());
                }
                Spread::Unknown => {
                    self.wait(self.options.retry_pause)?;
                    self.fetch_routes_until(deadline)?;
                }
                spread => return Ok(spread),
            }
        }
    }

    /// Asks for routes until a node has answered.
    pub(super) fn fetch_routes_until(&mut self, deadline: Instant) -> Result<(), ClientError> {
        let before = self.asking.answers;
        self.asking.asked = None;
        let is_answered = |session: &mut Session| (session.asking.answers > before).then_some(());
        self.ask_until(deadline, is_answered, |session| Request::Routes { known: session.routes.version() })
    }

    fn ask_until<T>(
        &mut self,
        deadline: Instant,
        answer: impl Fn(&mut Session) -> Option<T>,
        question: impl Fn(&Session) -> Request,
    ) -> Result<T, ClientError> {
        loop {
            if matches!(self.lack, Some(ClientError::Op(_)))
                && let Some(lack) = self.lack.take()
            {
                return Err(lack);
            }
            if let Some(answer) = answer(self) {
                return Ok(answer);
            }
            let now = Instant::now();
            if now >= deadline {
                let reason = self.last_failure.clone();
                return Err(ClientError::Unreachable { seeds: self.seeds.join(", "), reason });
            }
            self.ask(question(self), now);
            self.flush(now);
            self.wait(TICK.min(deadline - now))?;
        }
    }

    /// Whether the backups of its region answer this operation, and answer nothing stale.
    pub(super) fn is_for_backups(&self, table: &TableName, op: &Op) -> bool {
        op.is_scan() && self.routes.scans(table) == Scans::Backups && !self.follows_a_write(table, op)
    }

    /// Whether a write that this scan may show is not answered yet: the primary carries the scan out after it, and a backup may
    /// not know it.
    fn follows_a_write(&self, table: &TableName, scan: &Op) -> bool {
        let may_show = |pending: &Pending| {
            let write = &pending.op;
            write.writes_data() && pending.table == *table && !self.is_apart(table, scan, write)
        };
        self.parked.iter().any(|(_, pending)| may_show(pending))
            || self.links.values().flat_map(Link::pendings).any(may_show)
    }

    /// Whether a write is certainly of no key of the scan. Regions of tables with ranges of keys may have other bounds than the
    /// routes say. A key's token never goes to another region.
    fn is_apart(&self, table: &TableName, scan: &Op, write: &Op) -> bool {
        let Some(key) = write.key() else { return false };
        let is_outside = scan.range().is_some_and(|(start, end)| key < start || end.is_some_and(|end| key >= end));
        let of = |op: &Op| op.region_in(&self.routes, table).map(|route| route.region);
        is_outside || matches!(scan, Op::In { .. }) && of(scan).zip(of(write)).is_some_and(|(a, b)| a != b)
    }

    /// The member to which a read that any member may answer goes first: the live members in turn, or the backups.
    pub(super) fn any_member(&mut self, pending: &Pending) -> Option<String> {
        let Op::Stale { at_most_ms, read } = &pending.op else { return None };
        if pending.tries > 1 {
            return None;
        }
        let is_for_backups =
            *at_most_ms == 0 && read.range().is_some() && self.routes.scans(&pending.table) == Scans::Backups;
        let region = pending.op.region_in(&self.routes, &pending.table)?;
        let servers = region.primary.iter().filter(|_| !is_for_backups).chain(&region.backups);
        let addresses: Vec<&str> = servers.filter_map(|server| self.routes.address(*server)).collect();
        self.asking.turns = self.asking.turns.wrapping_add(1);
        let turn = self.asking.turns.checked_rem(addresses.len())?;
        Some(addresses[turn].to_owned())
    }

    /// Accepts the region map, if it is not older than the known routes.
    pub(super) fn take_map(&mut self, map: RegionMap) {
        if map.version >= self.routes.version() {
            self.asking.map = Some(map);
        }
    }

    /// Applies routes that a node sent. If they are newer, parked operations are tried at once, and the link to a
    /// server that is no longer primary and owes answers is given up.
    pub(super) fn take_routes(&mut self, token: Token, update: RoutesUpdate, now: Instant) {
        match self.routes.apply(update) {
            Err(error) => self.fail(token, &error.to_string()),
            // Asks for all routes.
            Ok(Applied::Unfit) => self.ask_routes(now),
            Ok(Applied::Known) => self.asking.answers += 1,
            Ok(Applied::Newer) => {
                self.asking.answers += 1;
                self.follow_routes(now);
            }
        }
    }

    fn follow_routes(&mut self, now: Instant) {
        for (at, _) in &mut self.parked {
            *at = now;
        }
        let routes = &self.routes;
        for link in self.links.values_mut() {
            let is_elsewhere =
                |pending: &Pending| primary_address(routes, &pending.table, &pending.op) != Some(&link.address);
            if link.pendings().any(is_elsewhere) {
                link.depose();
            }
        }
        self.leave_deposed(now);
    }

    /// Gives up the links to servers that owe answers, and have not been primaries since the operations were sent.
    pub(super) fn leave_deposed(&mut self, now: Instant) {
        let timeout = self.options.answer_timeout;
        self.fail_where("it does not answer and is not the primary any more", |link| link.is_deposed(now, timeout));
    }

    /// Asks for new routes now and then, since options of tables change although no operation fails.
    pub(super) fn refresh_routes(&mut self, now: Instant) {
        let is_connected = self.links.values().any(Link::is_connected);
        if is_connected && now - *self.asking.asked.get_or_insert(now) >= REFRESH {
            self.ask_routes(now);
        }
    }

    /// Asks some node for new routes, unless one was asked a moment ago.
    pub(super) fn ask_routes(&mut self, now: Instant) {
        self.ask(Request::Routes { known: self.routes.version() }, now);
    }

    /// Asks some node, unless one was asked a moment ago: one that is connected and owes no old answer; otherwise the
    /// next address of the seeds and the known servers.
    fn ask(&mut self, question: Request, now: Instant) {
        let pause = self.options.retry_pause * 4;
        if self.asking.asked.is_some_and(|asked| now - asked < pause) {
            return;
        }
        self.asking.asked = Some(now);
        let timeout = self.options.answer_timeout;
        let healthy = |link: &&mut Link| link.is_connected() && link.oldest().is_none_or(|sent| now - sent < timeout);
        let healthy: Vec<&mut Link> = self.links.values_mut().filter(healthy).collect();
        self.asking.next = self.asking.next.wrapping_add(1);
        let (next, count) = (self.asking.next, healthy.len());
        if let Some(link) = healthy.into_iter().nth(next.checked_rem(count).unwrap_or(0)) {
            link.ask(question);
            return;
        }
        let mut addresses = self.seeds.clone();
        addresses.extend(self.routes.servers().map(|(_, address)| address.to_owned()));
        if let Some(address) = addresses.get(next.checked_rem(addresses.len()).unwrap_or(0)) {
            // The first answer on a new connection has the routes.
            self.link_to(address, now);
        }
    }
}

/// Native address of the node that `op` goes to: the primary of its region. An operation without a region goes to any
/// node. So does one on an unknown table, or on keys that no route is known for: a node may know more, or returns an error.
/// (A user that may not see a table, or a part of it, is told no routes there.)
pub(super) fn primary_address<'a>(routes: &'a RouteCache, table: &str, op: &Op) -> Option<&'a str> {
    let is_of_keys = op.key().is_some() || op.range().is_some();
    match op.region_in(routes, table) {
        Some(region) => routes.address(region.primary?),
        None if is_of_keys || op.is_for_any_node() || !routes.regions().has_table(table) => {
            routes.servers().next().map(|(_, address)| address)
        }
        None => None,
    }
}
