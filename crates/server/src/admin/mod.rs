//! The admin port: HTTP for operators and their tools.
//!
//! | path | answers |
//! |---|---|
//! | `/` | a page for people |
//! | `/status` | JSON: the node's figures (`NodeStatus` of `leeward_format`) and, as `map`, the cluster as it knows it |
//! | `/metrics` | Prometheus's text format, or OpenMetrics if the client asks for it |
//! | `/livez` | 200 while the event loop turns, else 503 |
//! | `/readyz` | 200 when the node has joined the cluster and serves every region it is the primary of, else 503 and why |
//!
//! A request without a password must be for a name of the node (`host`). Once there are users, all but `/livez` and `/readyz` need one with the right to operate on all tables (`entry`).
//!
//! One thread with a single-threaded async runtime, so slow or idle HTTP clients cost no threads. `connection_limit`
//! bounds their number and their time. It asks the event loop for `Figures`, and a second thread renders them, so that
//! neither the event loop nor `/livez` waits for that. `/livez`, which anyone may ask, looks at the `Heartbeat` of the
//! event loop; `/readyz`, too, at figures of the last second if there are any.

mod connection_limit;
mod entry;
mod exposition;
mod host;
mod page;
mod view;

use crate::channel::{Doorbell, Event};
use crate::cpu_accounting::CpuAccounting;
pub use crate::figures::Snapshot;
use crate::figures::{Figures, Heartbeat};
use crate::metrics::Metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use connection_limit::ConnectionLimit;
pub(crate) use connection_limit::MOST_SESSIONS as RESERVED_FILES;
pub(crate) use entry::AdminEntry;
use exposition::Format;
pub(crate) use host::Hosts;
use leeward_platform::{BootClock, Clock, Nanos};
use leeward_security::tls::NodeTls;
use parking_lot::Mutex;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the event loop may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How old figures may be of which readiness is told.
const READINESS_LASTS: Nanos = Nanos::from_secs(1);
/// How long a connection without a byte of an answer is kept. Prometheus may scrape less often: then it connects again
/// for each scrape.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the files of certificates are looked at.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(2);
/// How many days before a certificate ends the log says so, and how often.
const EXPIRY_WARNING_DAYS: i64 = 30;
const EXPIRY_WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The running admin port. Dropping it closes the port.
pub(crate) struct Admin {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Asks the event loop for the node's figures.
#[derive(Clone)]
pub(crate) struct Asking {
    doorbell: Doorbell,
    cpu_accounting: Arc<CpuAccounting>,
    pub(crate) heartbeat: Arc<Heartbeat>,
    /// The last figures that came.
    latest: Arc<Mutex<Option<Arc<Figures>>>>,
}

#[derive(Clone)]
struct AdminHandler {
    asking: Asking,
    metrics: Arc<Metrics>,
    entry: AdminEntry,
}

impl Admin {
    /// Serves `listener`, which must be non-blocking.
    ///
    /// With `tls` it speaks HTTPS, and reads the files of certificates again when they change, for all ports.
    pub(crate) fn start(
        listener: TcpListener,
        tls: Option<Arc<NodeTls>>,
        asking: Asking,
        metrics: Arc<Metrics>,
        entry: AdminEntry,
    ) -> io::Result<Admin> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().max_blocking_threads(1).thread_name("admin-render").build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let router = Router::new()
            .route("/", get(home))
            .route("/status", get(status))
            .route("/metrics", get(metrics_text))
            .layer(axum::middleware::from_fn_with_state(entry.clone(), entry::check))
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .with_state(AdminHandler { asking, metrics, entry });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
            let listener = ConnectionLimit::new(listener, tls.clone(), SESSION_TIMEOUT);
            let server = axum::serve(listener, router.into_make_service_with_connect_info::<entry::From>());
            // Connections that are open when the node stops are closed at once.
            let served = runtime.block_on(async {
                tokio::select! {
                    served = server.into_future() => served,
                    _ = stopped => Ok(()),
                    () = read_certificates_again(tls) => Ok(()),
                }
            });
            if let Err(error) = served {
                tracing::error!(%error, "the admin port is closed");
            }
        })?;
        Ok(Admin { stop: Some(stop), thread: Some(thread) })
    }
}

/// Looks for new certificates for ever.
async fn read_certificates_again(tls: Option<Arc<NodeTls>>) {
    let Some(tls) = tls else { return std::future::pending().await };
    // How often in a row there was this error. The second time counts: a certificate and its key are replaced one by one.
    let (mut last_error, mut times) = (String::new(), 0);
    let mut warned: Option<Instant> = None;
    loop {
        match tls.reload() {
            Ok(is_new) => {
                times = 0;
                if is_new {
                    tracing::info!("new certificates count for new connections");
                }
            }
            Err(error) => {
                times = if error.to_string() == last_error { times + 1 } else { 1 };
                if times == 2 {
                    tracing::error!(%error, "the new certificates cannot be used, the former ones stay");
                }
                last_error = error.to_string();
            }
        }
        let days = tls.days_left();
        if days < EXPIRY_WARNING_DAYS && warned.is_none_or(|warned| warned.elapsed() >= EXPIRY_WARNING_INTERVAL) {
            tracing::warn!(days, "the certificate of this node ends soon: renew it");
            warned = Some(Instant::now());
        }
        tokio::time::sleep(CERTIFICATES_INTERVAL).await;
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Dropping the sender is the signal.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Asking {
    pub(crate) fn new(doorbell: Doorbell, cpu_accounting: Arc<CpuAccounting>) -> Asking {
        let heartbeat = Arc::new(Heartbeat::default());
        heartbeat.beat(BootClock.now());
        Asking { doorbell, cpu_accounting, heartbeat, latest: Arc::default() }
    }

    /// Asks the event loop for figures that are gathered from now on; `None` if it does not answer in time.
    async fn ask(&self) -> Option<Arc<Figures>> {
        let (reply, answer) = oneshot::channel();
        self.doorbell.send(Event::Figures(reply));
        let figures = tokio::time::timeout(TIMEOUT, answer).await.ok()?.ok()?;
        *self.latest.lock() = Some(figures.clone());
        Some(figures)
    }

    /// Figures that are not older than readiness may be; `None` if the event loop does not answer in time.
    async fn recent(&self) -> Option<Arc<Figures>> {
        let latest = self.latest.lock().clone();
        match latest.filter(|figures| BootClock.now().since(figures.at) < READINESS_LASTS) {
            Some(figures) => Some(figures),
            None => self.ask().await,
        }
    }

    /// The figures, with the CPU time of the process. It may take long.
    fn snapshot<'f>(&self, figures: &'f Figures) -> &'f Snapshot {
        figures.snapshot(|| self.cpu_accounting.status())
    }

    /// As [`Asking::ask`], for callers without an async runtime.
    pub(crate) fn ask_blocking(&self) -> Option<Snapshot> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
        let figures = runtime.block_on(self.ask())?;
        Some(self.snapshot(&figures).clone())
    }

    /// Answers with what `render` makes of `figures`, on the thread for that.
    async fn render<T: IntoResponse + Send + 'static>(
        &self,
        figures: Option<Arc<Figures>>,
        render: impl FnOnce(&Snapshot) -> T + Send + 'static,
    ) -> Response {
        let Some(figures) = figures else { return unanswered() };
        let asking = self.clone();
        let rendered = tokio::task::spawn_blocking(move || render(asking.snapshot(&figures)));
        match rendered.await {
            Ok(rendered) => rendered.into_response(),
            // It panicked, which was printed, or the node stops.
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

fn unanswered() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the event loop does not answer\n").into_response()
}

async fn home(State(shared): State<AdminHandler>) -> Response {
    let figures = shared.asking.ask().await;
    shared.asking.render(figures, |snapshot| Html(page::render(snapshot))).await
}

async fn status(State(shared): State<AdminHandler>) -> Response {
    let figures = shared.asking.ask().await;
    let json = |snapshot: &Snapshot| ([(header::CONTENT_TYPE, "application/json")], view::json(snapshot));
    shared.asking.render(figures, json).await
}

async fn metrics_text(State(shared): State<AdminHandler>, headers: HeaderMap) -> Response {
    let format = Format::asked(&headers);
    let figures = shared.asking.ask().await;
    let metrics = shared.metrics.clone();
    let text = move |snapshot: &Snapshot| {
        let about = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")];
        (about, format.of(metrics.encode(&snapshot.status)))
    };
    shared.asking.render(figures, text).await
}

async fn livez(State(shared): State<AdminHandler>) -> Response {
    match shared.asking.heartbeat.age() < TIMEOUT.into() {
        true => "ok\n".into_response(),
        false => unanswered(),
    }
}

async fn readyz(State(shared): State<AdminHandler>, uri: Uri, headers: HeaderMap) -> Response {
    let figures = shared.asking.recent().await;
    let is_open = shared.entry.is_open(&uri, &headers);
    let readiness = move |snapshot: &Snapshot| {
        let (is_ready, text) = view::readiness(snapshot);
        let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        // Anyone may ask whether it is ready, but why not is no one's business once there are users.
        let text = match (is_open, is_ready) {
            (true, _) => text,
            (false, true) => "ok\n".into(),
            (false, false) => "not ready\n".into(),
        };
        (code, text)
    };
    shared.asking.render(figures, readiness).await
}

#[cfg(test)]
mod tests;
