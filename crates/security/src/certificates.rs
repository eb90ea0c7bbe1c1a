//! A small certificate authority for one cluster: its certificate, and one for each server. `leeward certs` and
//! `leeward dev --tls` use it. A cluster may use any other authority: nodes need only the files, with the names of
//! [`server_name`] in them.
//!
//! ```text
//! ca.crt   ca.key            the authority; only `ca.crt` belongs on servers and clients
//! server-1.crt  server-1.key server 1's certificate, and its key
//! coordinator.crt and .key   those of an embedded coordinator
//! ```
//! Keys are written for their owner only. No function replaces a file.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::ServerName;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;

/// Name of the authority's certificate in its directory.
pub const CA_CERTIFICATE: &str = "ca.crt";
/// Name of the authority's key in its directory.
pub const CA_KEY: &str = "ca.key";

/// How long before now certificates are valid, so that clocks need not agree.
const BACKDATED: Duration = Duration::from_secs(3600);
/// How long the authority is valid.
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why certificates cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Where it is, or was to be written.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The authority's files are not those of an authority, or a name is none.
    #[error("{what}: {source}")]
    Content {
        /// The file or the name.
        what: String,
        /// What is wrong with it.
        source: rcgen::Error,
    },
    /// A host is none.
    #[error("'{0}' is neither a host's name nor an IP address")]
    Name(String),
    /// The files of the authority are of two authorities.
    #[error("{0}: it is not the key of {CA_CERTIFICATE}")]
    OtherKey(String),
}

/// The name of a server in its certificate. Other nodes accept that certificate as this server's, whatever its address.
pub fn server_name(server: u32) -> String {
    format!("server-{server}.leeward")
}

/// The server of such a name.
pub(crate) fn server_of_name(name: &str) -> Option<u32> {
    let server = name.strip_prefix("server-")?.strip_suffix(".leeward")?.parse().ok()?;
    (server_name(server) == name).then_some(server)
}

/// The name of an embedded coordinator in its certificate.
pub const COORDINATOR_NAME: &str = "coordinator.leeward";

/// The files of an embedded coordinator's certificate and key in the directory of an authority.
pub fn coordinator_files(directory: &Path) -> (PathBuf, PathBuf) {
    (directory.join("coordinator.crt"), directory.join("coordinator.key"))
}

/// The files of one server's certificate and key in the directory of an authority.
pub fn server_files(directory: &Path, server: u32) -> (PathBuf, PathBuf) {
    (directory.join(format!("server-{server}.crt")), directory.join(format!("server-{server}.key")))
}

/// An authority in a directory.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// The end of its own certificate.
    until: SystemTime,
}

impl Authority {
    /// Makes a new authority in `directory`, which is made as well.
    ///
    /// # Errors
    /// There is one already, or its files cannot be written.
    pub fn create(directory: &Path) -> Result<Authority, CertificateError> {
        fs::create_dir_all(directory).map_err(of_file(directory))?;
        let (key, until) = (new_key()?, SystemTime::now() + CA_LIFETIME);
        let mut params = params(&[], "Leeward cluster", until)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(of_content("the authority"))?;
        write_new(&directory.join(CA_KEY), key.serialize_pem().as_bytes(), true)?;
        write_new(&directory.join(CA_CERTIFICATE), certificate.pem().as_bytes(), false)?;
        Ok(Authority { directory: directory.into(), issuer: Issuer::new(params, key), until })
    }

    /// Opens the authority in `directory`.
    ///
    /// # Errors
    /// There is none, or its files are not an authority's.
    pub fn open(directory: &Path) -> Result<Authority, CertificateError> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(of_file(&path)).map(|text| (path.display().to_string(), text))
        };
        let ((key_path, key), (path, certificate)) = (read(CA_KEY)?, read(CA_CERTIFICATE)?);
        let key = KeyPair::from_pem(&key).map_err(of_content(&key_path))?;
        let public = key.public_key_raw().to_vec();
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(of_content(&path))?;
        let (of_certificate, until) = public_key(Path::new(&path), certificate.as_bytes())?;
        if of_certificate != public {
            return Err(CertificateError::OtherKey(key_path));
        }
        Ok(Authority { directory: directory.into(), issuer, until })
    }

    /// Makes a certificate for `server`, by which nodes and clients know it. `hosts` are the names and IP addresses under
    /// which clients reach it. It is valid for `lifetime`. Returns the files of the certificate and of its key.
    ///
    /// # Errors
    /// There is one already, a host is no name, or a file cannot be written.
    pub fn add_server(
        &self,
        server: u32,
        hosts: &[String],
        lifetime: Duration,
    ) -> Result<(PathBuf, PathBuf), CertificateError> {
        self.add(&server_name(server), server_files(&self.directory, server), hosts, lifetime)
    }

    /// Makes a certificate for an embedded coordinator. Returns its files, as [`Authority::add_server`] does.
    ///
    /// # Errors
    /// As of [`Authority::add_server`].
    pub fn add_coordinator(&self, lifetime: Duration) -> Result<(PathBuf, PathBuf), CertificateError> {
        self.add(COORDINATOR_NAME, coordinator_files(&self.directory), &[], lifetime)
    }

    fn add(
        &self,
        name: &str,
        (certificate_file, key_file): (PathBuf, PathBuf),
        hosts: &[String],
        lifetime: Duration,
    ) -> Result<(PathBuf, PathBuf), CertificateError> {
        let names: Vec<String> =
            std::iter::once(name).chain(hosts.iter().map(String::as_str)).map(str::to_string).collect();
        if let Some(odd) = names.iter().find(|name| ServerName::try_from(name.as_str()).is_err()) {
            return Err(CertificateError::Name(odd.clone()));
        }
        // No certificate outlives its authority.
        let mut params = params(&names, name, self.until.min(SystemTime::now() + lifetime))?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Between nodes a server is the client of others.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = new_key()?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(of_content(name))?;
        if !certificate_file.exists() {
            // The key of an attempt that did not come to its end.
            fs::remove_file(&key_file).or_else(unless_missing).map_err(of_file(&key_file))?;
        }
        write_new(&key_file, key.serialize_pem().as_bytes(), true)?;
        write_new(&certificate_file, certificate.pem().as_bytes(), false)?;
        Ok((certificate_file, key_file))
    }
}

/// What a certificate says, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Who it is for.
    pub subject: String,
    /// Names and IP addresses.
    pub names: Vec<String>,
    /// It may sign others.
    pub is_authority: bool,
    /// Its first and last instant, in seconds since 1970.
    pub valid: RangeInclusive<i64>,
}

impl Description {
    /// Whole days for which it is still valid; negative once it has expired.
    pub fn days_left(&self) -> i64 {
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
        (self.valid.end() - now).div_euclid(24 * 3600)
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_authority { "authority" } else { "certificate" };
        write!(f, "{kind} {}", self.subject)?;
        if !self.names.is_empty() {
            write!(f, " for {}", self.names.join(", "))?;
        }
        match self.days_left() {
            left @ 0.. => write!(f, ", valid for {left} more days"),
            left => write!(f, ", expired {} days ago", -left),
        }
    }
}

/// Describes the certificates in a file in PEM.
///
/// # Errors
/// It cannot be read, or has none.
pub fn describe(path: &Path) -> Result<Vec<Description>, CertificateError> {
    describe_pem(path, &fs::read(path).map_err(of_file(path))?)
}

/// [`describe`] of a file's content.
pub(crate) fn describe_pem(path: &Path, bytes: &[u8]) -> Result<Vec<Description>, CertificateError> {
    let odd = |why: String| of_file(path)(io::Error::new(io::ErrorKind::InvalidData, why));
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(bytes) {
        let pem = pem.map_err(|error| odd(error.to_string()))?;
        if pem.label != "CERTIFICATE" {
            continue;
        }
        let certificate = pem.parse_x509().map_err(|error| odd(error.to_string()))?;
        let names = certificate.subject_alternative_name().ok().flatten();
        found.push(Description {
            subject: certificate.subject().to_string(),
            names: names.map_or_else(Vec::new, |names| names.value.general_names.iter().map(name).collect()),
            is_authority: certificate.is_ca(),
            valid: certificate.validity().not_before.timestamp()..=certificate.validity().not_after.timestamp(),
        });
    }
    match found.is_empty() {
        true => Err(odd("it has no certificate in PEM".into())),
        false => Ok(found),
    }
}

/// The public key in a certificate, and until when that is valid.
fn public_key(path: &Path, pem: &[u8]) -> Result<(Vec<u8>, SystemTime), CertificateError> {
    let odd = |why: String| of_file(path)(io::Error::new(io::ErrorKind::InvalidData, why));
    let pem = Pem::iter_from_buffer(pem).next().ok_or_else(|| odd("it has no certificate in PEM".into()))?;
    let pem = pem.map_err(|error| odd(error.to_string()))?;
    let certificate = pem.parse_x509().map_err(|error| odd(error.to_string()))?;
    let key = certificate.public_key().subject_public_key.data.to_vec();
    let until = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    Ok((key, SystemTime::UNIX_EPOCH + Duration::from_secs(until)))
}

fn unless_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => (*name).to_string(),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(bytes) => IpAddr::from(bytes).to_string(),
            Err(_) => <[u8; 16]>::try_from(*bytes)
                .map_or_else(|_| format!("{bytes:?}"), |bytes| IpAddr::from(bytes).to_string()),
        },
        other => other.to_string(),
    }
}

fn new_key() -> Result<KeyPair, CertificateError> {
    KeyPair::generate().map_err(of_content("a key"))
}

fn params(names: &[String], common_name: &str, until: SystemTime) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(names).map_err(of_content(&names.join(", ")))?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = (SystemTime::now() - BACKDATED).into();
    params.not_after = until.into();
    Ok(params)
}

fn of_file(path: &Path) -> impl FnOnce(io::Error) -> CertificateError + use<> {
    let path = path.to_path_buf();
    move |source| CertificateError::File { path, source }
}

fn of_content(what: &str) -> impl FnOnce(rcgen::Error) -> CertificateError + use<> {
    let what = what.to_string();
    move |source| CertificateError::Content { what, source }
}

/// Writes a file that does not exist yet; a secret one for its owner only.
fn write_new(path: &Path, bytes: &[u8], is_secret: bool) -> Result<(), CertificateError> {
    let mode = if is_secret { 0o600 } else { 0o644 };
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(of_file(path))
}
