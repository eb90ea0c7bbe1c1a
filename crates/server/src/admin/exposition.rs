//! The two text formats of metrics, and which of them a client asks for by `Accept`: OpenMetrics if it names that, else
//! Prometheus's classic format, which every tool reads. The classic text is made of the other one, so that there is one
//! list of metrics. Pure functions.

use axum::http::{HeaderMap, header};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Classic,
}

impl Format {
    /// The format that a request asks for.
    pub(super) fn asked(headers: &HeaderMap) -> Format {
        let (mut open, mut classic) = (0.0, 0.0);
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in accepted.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let weighed = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => &mut open,
                "text/plain" => &mut classic,
                _ => continue,
            };
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
            *weighed = quality.unwrap_or(1.0).max(*weighed);
        }
        if open > 0.0 && open >= classic { Format::OpenMetrics } else { Format::Classic }
    }

    /// The type of its content.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The text of OpenMetrics in this format.
    pub(super) fn of(self, text: String) -> String {
        match self {
            Format::OpenMetrics => text,
            Format::Classic => classic(&text),
        }
    }
}

/// The metrics of this text in the classic format. There the family of a counter has the name of its samples, which end
/// in `_total`, and there are no lines about units, nor about the end.
fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help: Option<(&str, &str)> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(meta) = line.strip_prefix("# ") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let mut words = meta.splitn(3, ' ');
        let (kind, name, rest) = (words.next(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match kind {
            Some("HELP") => help = Some((name, rest)),
            Some("TYPE") => {
                let suffix = if rest == "counter" { "_total" } else { "" };
                let has_samples =
                    lines.clone().find(|next| !next.starts_with("# UNIT")).is_some_and(|next| !next.starts_with('#'));
                let of_it = help.take().filter(|(of, _)| *of == name);
                if !has_samples {
                    continue;
                }
                if let Some((_, help)) = of_it {
                    out += &format!("# HELP {name}{suffix} {help}\n");
                }
                out += &format!("# TYPE {name}{suffix} {rest}\n");
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(accept: &[&'static str]) -> Format {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(header::ACCEPT, value.parse().expect("a value"));
        }
        Format::asked(&headers)
    }

    #[test]
    fn open_metrics_are_for_clients_that_name_them() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,text/plain;q=0.3,*/*;q=0.2";
        for accept in
            [&[prometheus][..], &["Application/OpenMetrics-Text"], &["text/html", "application/openmetrics-text"]]
        {
            assert_eq!(asked(accept), Format::OpenMetrics, "{accept:?}");
        }
        let others =
            ["", "*/*", "text/plain", "text/html, */*;q=0.1", "application/openmetrics-text;q=0", "nonsense;;,;q=x"];
        for accept in others.into_iter().chain(["text/plain, application/openmetrics-text; q=0.5"]) {
            assert_eq!(asked(&[accept]), Format::Classic, "{accept:?}");
        }
        assert_eq!(asked(&[]), Format::Classic);
    }

    #[test]
    fn the_classic_text_names_counters_as_their_samples() {
        let text = "# HELP a_calls Calls # of all kinds.\n# TYPE a_calls counter\na_calls_total{x=\"# HELP\"} 1\n\
             # HELP a_none Nothing.\n# TYPE a_none counter\n\
             # HELP a_time_seconds Time.\n# TYPE a_time_seconds histogram\n# UNIT a_time_seconds seconds\n\
             a_time_seconds_sum 0.5\na_time_seconds_count 2\na_time_seconds_bucket{le=\"+Inf\"} 2\n\
             # HELP a_gauge Now.\n# TYPE a_gauge gauge\na_gauge 3\n# EOF\n";
        let classic = "# HELP a_calls_total Calls # of all kinds.\n# TYPE a_calls_total counter\n\
             a_calls_total{x=\"# HELP\"} 1\n\
             # HELP a_time_seconds Time.\n# TYPE a_time_seconds histogram\n\
             a_time_seconds_sum 0.5\na_time_seconds_count 2\na_time_seconds_bucket{le=\"+Inf\"} 2\n\
             # HELP a_gauge Now.\n# TYPE a_gauge gauge\na_gauge 3\n";
        assert_eq!(Format::Classic.of(text.into()), classic);
        assert_eq!(Format::OpenMetrics.of(text.into()), text);
    }
}
