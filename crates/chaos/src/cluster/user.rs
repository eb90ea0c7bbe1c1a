//! The user that every client of a run is, where connections are encrypted. It may do everything.

use super::{ANSWER_WITHIN, NAME};
use crate::error::{ChaosError, fault};
use leeward_client::{Client, ClientOptions};
use leeward_format::user::{PasswordHash, Presence, Rights, UserChange, UserName, UserRule};
use leeward_security::passwords::{Credentials, Password, hash};
use std::fs;
use std::path::{Path, PathBuf};

/// The user of the clients: its password, and the file with it.
#[derive(Debug)]
pub(super) struct User {
    credentials: Credentials,
    /// File with the password, which addresses name.
    file: PathBuf,
}

impl User {
    /// Makes the first user of the cluster at these addresses, with a new password in `directory`.
    pub(super) fn make(directory: &Path, addresses: &[String]) -> Result<User, ChaosError> {
        let (file, password) = (directory.join("password"), Password::generate());
        fs::write(&file, password.bytes()).map_err(fault("write", &file))?;
        let refused =
            |error: &dyn std::fmt::Display| ChaosError::NotReady(format!("the user could not be made: {error}"));
        let name: UserName = NAME.parse().map_err(|error: String| refused(&error))?;
        let credentials = Credentials { user: name.to_string(), password };
        let rules = vec![
            UserRule::Enable(true),
            UserRule::AddPassword(PasswordHash::new(hash(&credentials.password))),
            UserRule::AddRights(Rights::ALL),
            UserRule::AddPrefix(bytes::Bytes::new()),
        ];
        let options = ClientOptions { name: NAME.into(), deadline: ANSWER_WITHIN * 20, ..ClientOptions::default() };
        let client = Client::connect(addresses, options).map_err(|error| refused(&error))?;
        let change = UserChange { name, presence: Presence::New, rules };
        client.change_user(change).map_err(|error| refused(&error))?;
        Ok(User { credentials, file })
    }

    pub(super) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Its name, before the host of an address.
    pub(super) fn at(&self) -> String {
        format!("{}@", self.credentials.user)
    }

    /// What names its password in an address.
    pub(super) fn password_file(&self) -> String {
        format!("password_file={}", self.file.display())
    }
}
