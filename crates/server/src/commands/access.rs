//! What a Redis connection may do: the checks before each command and of its operations, and how a user comes in.
//!
//! [`Spec::start`](super::Spec) asks [`Session::permits`] before a command runs, and [`Session::permit_operations`]
//! before the operations of its work are submitted. There is no other way to the node, so no command can forget them.

use super::session::Session;
use super::table::{Needs, Spec};
use super::work::Work;
use super::{Context, acl, connection, error_reply};
use crate::places::FULL;
use crate::protocol_session::ProtocolSession;
use crate::resp::{Protocol, Reply};
use crate::users::audit::Kind;
use crate::users::identity::{PROTECTED, is_of_operators, operators_request};
use crate::users::{Answer, Draft, Question, Reason, Refusal, Refused, Work as Asked};
use bytes::Bytes;
use leeward_format::op::Op;
use leeward_format::user::{DEFAULT_USER, Denied, Keys, Need, Presence, UserChange, UserName, UserRule};
use leeward_security::passwords::Password;

const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NEEDS_USER: &str = "NOAUTH Authentication required.";

/// What is to be done with the answer of the password thread.
pub(super) enum Waiting {
    /// `AUTH`, or `HELLO ... AUTH` with what else that chooses: the protocol, and the connection's name.
    User { tried: String, greets: Option<(Protocol, Option<String>)> },
    /// `ACL SETUSER`.
    SetUser(UserName),
}

impl Session {
    /// Whether the command may run.
    ///
    /// # Errors
    /// The reply, if it may not.
    pub(super) fn permits(&mut self, spec: &Spec, args: &[Bytes], context: &mut Context) -> Result<(), Reply> {
        if !self.follow_users(context) {
            // The event loop is about to close it.
            self.stop();
            return Err(Reply::Error(NEEDS_USER.into()));
        }
        match self.identity.admitted() {
            Err(Refusal::Protected) => {
                self.stop();
                return Err(Reply::Error(format!("DENIED {PROTECTED}")));
            }
            Err(Refusal::Unknown) => return Err(error_reply(&Refusal::Unknown.error())),
            Err(Refusal::Unauthenticated) if spec.needs != Needs::Nothing => {
                return Err(Reply::Error(NEEDS_USER.into()));
            }
            Ok(()) | Err(Refusal::Unauthenticated) => {}
        }
        let is_served = context.shared.places.serves(self.id(), self.identity.is_operator());
        if !is_served && spec.needs.is_of_table() {
            return Err(Reply::err(FULL));
        }
        let rights = spec.needs.everywhere(args);
        if !rights.is_empty() && self.identity.has_everywhere(rights).is_err() {
            return Err(self.no_right(spec, args, context));
        }
        if spec.needs.is_of_table() {
            if let Err(refusal) = self.identity.serves() {
                return Err(error_reply(&refusal.error()));
            }
            if !self.identity.knows(&self.terms.table) {
                return Err(self.no_place(&self.terms.table.clone(), context));
            }
        }
        Ok(())
    }

    /// The work, or the reply in its place if the user may not have all of its operations executed.
    pub(super) fn permit_operations(&mut self, spec: &Spec, work: Work, context: &mut Context) -> Work {
        let mut requests = Vec::new();
        let checked = spec.check_operations(&work, |op, need| {
            self.identity.may(&self.terms.table, need, context.routes)?;
            if is_of_operators(need) {
                requests.extend(operators_request(op));
            }
            Ok(())
        });
        let name = Bytes::from_static(spec.name.as_bytes());
        match checked {
            Ok(()) => {
                for request in requests {
                    let (audit, address) = (&context.shared.gate.audit, self.identity.address());
                    audit.note(Kind::Request, self.identity.name(), address, request);
                }
                work
            }
            Err(_) if self.identity.serves().is_err() => Work::Ready(error_reply(&Refusal::Unknown.error())),
            Err((Denied::Right, _)) => Work::Ready(self.no_right(spec, &[name], context)),
            Err((Denied::Place, key)) => Work::Ready(self.no_place(&String::from_utf8_lossy(&key), context)),
        }
    }

    /// The reply to a command that the user may not use at all.
    fn no_right(&self, spec: &Spec, args: &[Bytes], context: &mut Context) -> Reply {
        let name = spec.full_name(args);
        self.note(Reason::Command, Bytes::from(name.clone()), None, context);
        if !spec.needs.everywhere(args).is_empty() {
            let (audit, address) = (&context.shared.gate.audit, self.identity.address());
            audit.note(Kind::Denied, self.identity.name(), address, name.clone());
        }
        Reply::Error(format!("NOPERM this user has no permissions to run the '{name}' command"))
    }

    /// The reply to a command on keys, or a table, that the user may not touch.
    pub(super) fn no_place(&self, key: &str, context: &mut Context) -> Reply {
        self.note(Reason::Key, Bytes::copy_from_slice(key.as_bytes()), None, context);
        Reply::Error("NOPERM this user has no permissions to access one of the keys used as arguments".into())
    }

    fn note(&self, reason: Reason, object: Bytes, user: Option<&str>, context: &mut Context) {
        let shared = &mut *context.shared;
        let client = shared.clients.line(self.id(), context.now);
        let user = user.unwrap_or(self.identity.name()).into();
        shared.gate.log.note(context.now, Refused { reason, object, user, client });
    }

    /// Shows the user in `CLIENT LIST`.
    pub(super) fn show_user(&self, context: &mut Context) {
        if let Some(client) = context.shared.clients.get_mut(self.id())
            && client.user != self.identity.name()
        {
            client.user = self.identity.name().into();
        }
    }

    /// Has a user come in. `greets`: as in [`Waiting::User`].
    pub(super) fn authenticate(
        &mut self,
        user: &[u8],
        password: &[u8],
        greets: Option<(Protocol, Option<String>)>,
        context: &mut Context,
    ) -> Work {
        if !context.users.is_known {
            return Work::Ready(error_reply(&Refusal::Unknown.error()));
        }
        let user = String::from_utf8_lossy(&user[..user.len().min(256)]).into_owned();
        let waiting = Waiting::User { tried: user.clone(), greets };
        if context.users.is_empty() {
            // As in Redis, the user `default` needs no password then.
            let answer = match user == DEFAULT_USER && self.identity.admitted().is_ok() {
                true => Answer::Admitted(UserName::default(), None),
                false => Answer::Refused,
            };
            return self.end_waiting(waiting, answer, context);
        }
        self.ask(Asked::Check { user, password: Password::new(password) }, waiting, context)
    }

    /// Has the rules of a change made, which names passwords.
    pub(super) fn draft(&mut self, name: UserName, rules: Vec<Draft>, context: &mut Context) -> Work {
        let user = context.users.get(&name).cloned();
        self.ask(Asked::Rules { user, rules }, Waiting::SetUser(name), context)
    }

    fn ask(&mut self, work: Asked, waiting: Waiting, context: &mut Context) -> Work {
        let question = Question { connection: self.id(), from: self.identity.address(), work };
        context.shared.gate.questions.push(question);
        self.waiting = Some(waiting);
        Work::Waiting
    }

    /// What becomes of a command that has waited.
    pub(super) fn end_waiting(&mut self, waiting: Waiting, answer: Answer, context: &mut Context) -> Work {
        if let Some(why) = answer.unchecked() {
            return Work::Ready(Reply::err(why));
        }
        let admitted = match answer {
            Answer::Rules(rules) => {
                let Waiting::SetUser(name) = waiting else { return Work::Ready(Reply::Error(WRONG.into())) };
                return self.change_user(name, rules, context);
            }
            Answer::NoSuchPassword => {
                return Work::Ready(Reply::err(
                    "Error in ACL SETUSER modifier '<...': The password you are trying to remove from the user does not \
                     exist",
                ));
            }
            Answer::Refused | Answer::Busy | Answer::TooSoon(_) => false,
            Answer::Admitted(_, None) if context.users.is_empty() => true,
            Answer::Admitted(name, password) => self.identity.become_user(name, password, context.users),
        };
        if !admitted {
            if let Waiting::User { tried, .. } = &waiting {
                self.note(Reason::Auth, Bytes::from_static(b"auth"), Some(tried), context);
            }
            return Work::Ready(Reply::Error(WRONG.into()));
        }
        self.show_user(context);
        // An operator's place is its own from now on.
        context.shared.places.serves(self.id(), self.identity.is_operator());
        match waiting {
            Waiting::User { greets: Some((protocol, name)), .. } => {
                Work::Ready(connection::greet(self, protocol, name, context))
            }
            Waiting::User { .. } | Waiting::SetUser(_) => Work::Ready(Reply::OK),
        }
    }

    /// Changes a user by rules that name no passwords any more.
    pub(super) fn change_user(&mut self, name: UserName, rules: Vec<UserRule>, context: &mut Context) -> Work {
        let change = UserChange { name, presence: Presence::Any, rules };
        if let Err(reason) = context.users.changed(&change) {
            return Work::Ready(Reply::err(reason));
        }
        // Rights may have gone while it waited.
        let op = Op::ChangeUser { change: Box::new(change) };
        match super::check_op(&op) {
            Ok(()) => self.permit_operations(acl::spec(), Work::one(op, acl::done), context),
            Err(error) => Work::Ready(error_reply(&error)),
        }
    }
}

impl Spec {
    /// Asks `may` for each operation of the command's work, in order, until one may not be executed.
    ///
    /// # Errors
    /// What it lacks, and the key, or the first key of the range, that it is about.
    pub(super) fn check_operations(
        &self,
        work: &Work,
        mut may: impl FnMut(&Op, &Need) -> Result<(), Denied>,
    ) -> Result<(), (Denied, Bytes)> {
        work.check(|op| {
            let need = op.need().also(self.needs.also());
            may(op, &need).map_err(|denied| match need.keys {
                Keys::One(key) | Keys::Range(key, _) => (denied, Bytes::copy_from_slice(key)),
                Keys::None => (denied, Bytes::new()),
            })
        })
    }
}
