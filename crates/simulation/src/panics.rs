//! Failed assertions: a panic in a simulated cluster is a finding of its seed, not the end of the process.
//!
//! The hook is installed once for the process. It suppresses the message only of panics inside [`catch`], on that thread.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// Runs `act`. If it panics, answers the message and the place.
pub(crate) fn catch<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(install);
    let outer = CATCHING.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(act));
    CATCHING.set(outer);
    outcome.map_err(|_| CAUGHT.take())
}

fn install() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| match CATCHING.get() {
        true => drop(CAUGHT.replace(describe(info))),
        false => usual(info),
    }));
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let text = info.payload_as_str().unwrap_or("without a message");
    match info.location() {
        Some(at) => format!("panic at {}:{}: {text}", at.file(), at.line()),
        None => format!("panic: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_answered_with_its_place() {
        assert_eq!(catch(|| 7), Ok(7));
        let caught = catch(|| panic!("it {} wrong", "went")).unwrap_err();
        assert!(caught.contains("panics.rs:") && caught.ends_with("it went wrong"), "{caught}");
        assert!(!CATCHING.get());
    }
}
