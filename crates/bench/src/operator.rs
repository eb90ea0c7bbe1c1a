//! Users of a measurement's cluster: made, given passwords and removed by the measurement, as by an operator. Any thread.

use crate::replication::Failure;
use leeward_client::{
    Client, ClientError, ClientOptions, Grant, OpError, Password, PasswordId, Presence, UserChange, UserName, UserRule,
};
use leeward_format::user::PasswordHash;
use leeward_security::passwords;
use std::thread;
use std::time::{Duration, Instant};

/// The user that may do everything.
const ROOT: &str = "root";

/// Time for every node to learn of a new user, and between two tries to connect as it.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);

/// A password that was made for a user, with what the cluster keeps of it.
pub(crate) struct Made {
    /// The password.
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
        let options = ClientOptions { password: Some(made.password), ..ClientOptions::default() };
        let addresses: Vec<String> = addresses.iter().map(|address| as_user(address, ROOT)).collect();
        let begun = Instant::now();
        loop {
            match Client::connect(&addresses, options.clone()) {
                // A node that is behind learns of the user late.
                Err(ClientError::Op(OpError::Unauthenticated(_))) if begun.elapsed() < KNOWN_WITHIN => {
                    thread::sleep(LOOK);
                }
                connected => return Ok(Operator(connected?)),
            }
        }
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
