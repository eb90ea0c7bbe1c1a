//! Who may talk to a node, and how both sides prove who they are: TLS and the certificates of a cluster, and passwords.
//!
//! All cryptography is that of rustls, ring and argon2. This crate knows files of certificates, the names in them, and streams of
//! bytes. It knows no sockets, no protocols and no keys of the store.

#![forbid(unsafe_code)]

pub mod certificates;
pub mod passwords;
pub mod tls;
