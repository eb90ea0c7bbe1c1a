//! Which of the existing records an operation names, by the names that `--distribution` has for it. Plain data.

use crate::generators::THETA;
use std::str::FromStr;

/// Which of the existing records an operation names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// A few hot records anywhere.
    Zipfian(Theta),
    /// All alike.
    Uniform,
    /// The newest are the hottest (theta 0.99).
    Latest,
}

/// How skewed a zipfian distribution is: rank r, from 1, has a probability proportional to 1 / r^theta. Above 0 and
/// below 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Theta(f64);

impl Theta {
    /// Above 0 and below 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// That of YCSB and of the papers.
impl Default for Theta {
    fn default() -> Theta {
        Theta(THETA)
    }
}

impl FromStr for Theta {
    type Err = String;
    fn from_str(text: &str) -> Result<Theta, String> {
        let theta = text.parse::<f64>().ok().filter(|theta| 0.0 < *theta && *theta < 1.0);
        theta.map(Theta).ok_or_else(|| {
            format!(
                "{text:?} is no theta: it is a number above 0 and below 1, as in zipfian:0.9; uniform is without skew"
            )
        })
    }
}

impl FromStr for Distribution {
    type Err = String;
    fn from_str(text: &str) -> Result<Distribution, String> {
        let lower = text.to_ascii_lowercase();
        match lower.split_once(':').map_or((&lower[..], None), |(name, theta)| (name, Some(theta))) {
            ("zipfian", None) => Ok(Distribution::Zipfian(Theta::default())),
            ("zipfian", Some(theta)) => theta.parse().map(Distribution::Zipfian),
            ("uniform", None) => Ok(Distribution::Uniform),
            ("latest", None) => Ok(Distribution::Latest),
            _ => Err(format!("unknown distribution {text:?}: it is one of zipfian, zipfian:THETA, uniform, latest")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zipfian_distribution_may_have_a_theta() {
        let theta = |text: &str| match text.parse() {
            Ok(Distribution::Zipfian(theta)) => theta.get(),
            other => panic!("{text}: {other:?}"),
        };
        let texts = ["zipfian", "zipfian:0.9", "Zipfian:0.5", "zipfian:.25", "zipfian:1e-3", "zipfian:0.99"];
        assert_eq!(texts.map(theta), [0.99, 0.9, 0.5, 0.25, 0.001, 0.99]);
        assert_eq!("uniform".parse(), Ok(Distribution::Uniform));
        assert_eq!("LATEST".parse(), Ok(Distribution::Latest));
    }

    #[test]
    fn what_is_no_distribution_is_refused_with_what_would_be_one() {
        for theta in ["", "0", "-0.0", "1", "1.0", "1.5", "-0.9", "nan", "inf", "0,9", "0.9x", " 0.9", "0.9:0.9"] {
            let refused = format!("zipfian:{theta}").parse::<Distribution>().expect_err(theta);
            assert!(refused.contains("above 0 and below 1") && refused.contains(theta), "{refused}");
        }
        for unknown in ["", "gauss", "zipf", "uniform:0.9", "latest:0.9", ":0.9"] {
            let refused = unknown.parse::<Distribution>().expect_err(unknown);
            assert!(refused.contains("zipfian, zipfian:THETA, uniform, latest"), "{refused}");
        }
    }
}
