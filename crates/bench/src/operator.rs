//! Users of a measurement's cluster: made, given passwords and removed by the measurement, as by an operator. Any thread.

use crate::options::Failure;
use leeward_client::{
    Client, ClientError, ClientOptions, Grant, OpError, Password, PasswordId, Presence, Session, UserChange, UserName,
    UserRule,
};
use leeward_format::user::PasswordHash;
use leeward_security::passwords;
use std::thread;
use std::time::{Duration, Instant};

/// The user that may do everything.
const ROOT: &str = "root";

/// How long nodes may take to follow a change: to accept a new password, to refuse a removed one.
pub(crate) const IN_FORCE_WITHIN: Duration = Duration::from_secs(60);
/// How often that is checked.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A password that was made for a user, with what the cluster keeps of it.
pub(crate) struct Made {
    pub(crate) password: Password,
    hash: PasswordHash,
}

impl Made {
    /// A new one. Takes some 20 ms.
    pub(crate) fn new() -> Made {
        let password = Password::generate();
        let hash = PasswordHash::new(passwords::hash(&password));
        Made { password, hash }
    }

    /// Names it in changes.
    pub(crate) fn id(&self) -> PasswordId {
        self.hash.id()
    }

    /// Adds it.
    pub(crate) fn rule(&self) -> UserRule {
        UserRule::AddPassword(self.hash.clone())
    }
}

/// A client that may change users.
pub(crate) struct Operator(Client);

impl Operator {
    /// Makes the first user of the cluster at `addresses`, and connects as it.
    pub(crate) fn make(addresses: &[String]) -> Result<Operator, Failure> {
        let made = Made::new();
        let first = Client::connect(addresses, ClientOptions::default())?;
        let rules = vec![UserRule::Enable(true), made.rule(), UserRule::AddGrant(Grant::everything())];
        first.change_user(UserChange { name: name(ROOT)?, presence: Presence::New, rules })?;
        wait_until(addresses, ROOT, &made, Verdict::Accepted)?;
        let options = ClientOptions { password: Some(made.password), ..ClientOptions::default() };
        let addresses: Vec<String> = addresses.iter().map(|address| as_user(address, ROOT)).collect();
        Ok(Operator(Client::connect(&addresses, options)?))
    }

    /// Makes a user that is enabled, with a password.
    pub(crate) fn add(&self, user: &str, made: &Made, grants: &[Grant]) -> Result<(), Failure> {
        let grants = grants.iter().cloned().map(UserRule::AddGrant);
        let rules = [UserRule::Enable(true), made.rule()].into_iter().chain(grants).collect();
        Ok(self.0.change_user(UserChange { name: name(user)?, presence: Presence::New, rules })?)
    }

    /// Changes a user that is there.
    pub(crate) fn change(&self, user: &str, rules: Vec<UserRule>) -> Result<(), Failure> {
        Ok(self.0.change_user(UserChange { name: name(user)?, presence: Presence::Known, rules })?)
    }

    /// Removes all users, itself too: everybody is let in again.
    pub(crate) fn remove_all(self) -> Result<(), Failure> {
        Ok(self.0.remove_users(None)?)
    }
}

/// Whether a node lets in who gives a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It does.
    Accepted,
    /// It does not.
    Refused,
}

/// Waits until every node says `wanted` to the password of `user`: a node that is behind follows changes late. Answers to
/// failed tries are delayed, up to 5 s once there were many.
pub(crate) fn wait_until(addresses: &[String], user: &str, made: &Made, wanted: Verdict) -> Result<(), Failure> {
    let begun = Instant::now();
    let (deadline, connect_within) = (IN_FORCE_WITHIN, IN_FORCE_WITHIN);
    for address in addresses {
        let seed = as_user(address, user);
        loop {
            let password = Some(made.password.clone());
            let options = ClientOptions { password, deadline, connect_within, ..ClientOptions::default() };
            let (verdict, outcome) = match Session::connect(std::slice::from_ref(&seed), options) {
                Err(ClientError::Op(OpError::Unauthenticated(why))) => (Some(Verdict::Refused), why),
                Err(error) => (None, error.to_string()),
                Ok(_) => (Some(Verdict::Accepted), "it is accepted".into()),
            };
            if verdict == Some(wanted) {
                break;
            }
            if begun.elapsed() > IN_FORCE_WITHIN {
                let change = match wanted {
                    Verdict::Accepted => "a new password is not accepted",
                    Verdict::Refused => "a removed password is not refused",
                };
                return Err(format!("after {IN_FORCE_WITHIN:?} {change} at {seed}: {outcome}").into());
            }
            thread::sleep(LOOK);
        }
    }
    Ok(())
}

fn name(user: &str) -> Result<UserName, Failure> {
    Ok(user.parse()?)
}

/// The address, as one of a user.
pub(crate) fn as_user(address: &str, user: &str) -> String {
    match address.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{user}@{rest}"),
        None => format!("leeward://{user}@{address}"),
    }
}
