//! The event loop's part in [users](crate::users): it hands questions about passwords to the password thread, and their
//! answers to the sessions; and it ends connections whose users are gone.

use super::event_loop::EventLoop;
use super::secrecy::Secrecy;
use crate::channel::{Doorbell, Event};
use crate::passwords::PasswordThread;
use crate::quota::Quota;
use crate::users::Answer;
use leeward_platform::Nanos;

/// How long a connection whose user is gone stays open: the user that removed itself, or its password, gets the answer.
const LEAVING: Nanos = Nanos::from_millis(200);

/// The password thread, and the users that it and the sessions know.
pub(super) struct Visitors {
    thread: PasswordThread,
    doorbell: Doorbell,
    secrecy: Secrecy,
    /// Of the users that all connections have followed.
    revision: u64,
    /// Connections whose users are gone, and when they end. Until then they get what is answered, and do nothing else.
    leaving: Vec<(Nanos, u64)>,
}

impl Visitors {
    pub(super) fn new(thread: PasswordThread, doorbell: Doorbell, secrecy: Secrecy) -> Visitors {
        Visitors { thread, doorbell, secrecy, revision: 0, leaving: Vec::new() }
    }
}

impl EventLoop {
    /// Asks what sessions want to know since the last call.
    pub(super) fn ask_passwords(&mut self) {
        for question in self.driver.shared.gate.questions.drain(..) {
            let (doorbell, connection) = (self.visitors.doorbell.clone(), question.connection);
            let reply = Box::new(move |answer| doorbell.send(Event::Answered(connection, answer)));
            self.visitors.thread.passwords().ask(question, reply);
        }
    }

    /// Hands an answer to its session.
    pub(super) fn answered(&mut self, now: Nanos, id: u64, answer: Answer) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let mut context = self.driver.context(now, Quota::default());
        // A password that was right gives nothing to a user that is gone meanwhile.
        let _stays = connection.protocol_session.follow_users(&mut context);
        connection.protocol_session.answered(answer, &mut context);
        self.connections.touch(id);
    }

    /// Has all connections follow the users, if those have changed. Connections whose users are gone are refused everything
    /// at once, and end after [`LEAVING`].
    pub(super) fn follow_users(&mut self, now: Nanos) {
        for (_, id) in self.visitors.leaving.extract_if(.., |(until, _)| *until <= now) {
            if self.connections.give_up(id) {
                tracing::info!(client = id, "the user of a client is gone, or its password; closing its connection");
            }
        }
        let users = self.driver.node.users();
        if users.revision == self.visitors.revision {
            return;
        }
        self.visitors.revision = users.revision;
        if !users.is_empty() {
            // Passwords come in from now on.
            self.visitors.secrecy.keep();
        }
        self.visitors.thread.passwords().set_users(users.clone());
        for (id, connection) in self.connections.all_mut() {
            let mut context = self.driver.context(now, Quota::default());
            if !connection.protocol_session.follow_users(&mut context) {
                self.visitors.leaving.push((now + LEAVING, id));
            }
        }
    }
}
