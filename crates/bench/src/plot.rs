//! Plots: one SVG a figure. Every round is a dot and the median a bar. The scale is logarithmic, since values differ by
//! orders of magnitude; zeroes are not drawn.

use crate::figures::median;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Size of one panel, in pixels.
const PANEL: (u32, u32) = (960, 330);
/// Room for the legend.
const LEGEND: u32 = 40;
/// Part of the width of a label that its series share.
const SPREAD: f64 = 0.8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One of the things that a plot compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Text in the legend.
    pub name: String,
    /// Red, green and blue.
    pub color: (u8, u8, u8),
}

/// Points of one series at one place of an axis.
pub struct Point {
    /// Gives the color, and the place beside those of other series.
    pub series: Series,
    /// Index of its label in [`Panel::labels`].
    pub place: usize,
    /// One a round.
    pub values: Vec<f64>,
}

/// A panel of a plot.
pub struct Panel {
    /// Caption above the panel.
    pub title: String,
    /// Places of its axis.
    pub labels: Vec<String>,
    /// The points over those labels.
    pub points: Vec<Point>,
}

/// The file for the plot called `name`, in the directory of the results `json`.
pub fn plot_file(json: &Path, name: &str) -> PathBuf {
    let stem = json.file_stem().unwrap_or_default().to_string_lossy();
    json.with_file_name(format!("{stem}-{name}.svg"))
}

/// Draws `panels` into `file`, one below the other; those without points are left out.
///
/// # Errors
/// The file cannot be written.
pub fn draw(file: &Path, panels: &[Panel]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let panels: Vec<&Panel> = panels.iter().filter(|panel| !panel.points.is_empty()).collect();
    let mut series: Vec<&Series> = Vec::new();
    for point in panels.iter().flat_map(|panel| &panel.points) {
        if !series.contains(&&point.series) {
            series.push(&point.series);
        }
    }
    let size = (PANEL.0, LEGEND + PANEL.1 * panels.len().max(1) as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (top, rest) = root.split_vertically(LEGEND);
    legend(&top, &series)?;
    for (area, panel) in rest.split_evenly((panels.len().max(1), 1)).iter().zip(panels) {
        draw_panel(area, panel, &series)?;
    }
    root.present().map_err(|error| format!("{}: {error}", file.display()).into())
}

fn color(series: &Series) -> RGBColor {
    let (red, green, blue) = series.color;
    RGBColor(red, green, blue)
}

fn legend(area: &Area<'_>, series: &[&Series]) -> Result<(), Box<dyn Error + Send + Sync>> {
    for (place, series) in series.iter().enumerate() {
        let x = 60 + 190 * place as i32;
        area.draw(&Circle::new((x, 20), 6, color(series).filled()))?;
        area.draw(&Text::new(series.name.clone(), (x + 12, 13), ("sans-serif", 16)))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel, series: &[&Series]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let values = panel.points.iter().flat_map(|point| &point.values).copied().filter(|value| *value > 0.0);
    let (low, high) =
        values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
    let width = panel.labels.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 17))
        .margin(8)
        .x_label_area_size(26)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..width, (low / 1.5..high * 1.5).log_scale())?;
    let label = |x: &f64| {
        let is_middle = (x.fract() - 0.5).abs() < 1e-6;
        panel.labels.get(x.floor() as usize).filter(|_| is_middle).cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * panel.labels.len() + 1)
        .x_label_formatter(&label)
        .y_label_formatter(&|y| if *y < 10.0 { format!("{y:.2}") } else { format!("{y:.0}") })
        .label_style(("sans-serif", 14))
        .draw()?;
    let step = SPREAD / series.len() as f64;
    for Point { series: of, place, values } in &panel.points {
        let turn = series.iter().position(|other| *other == of).unwrap_or(0) as f64;
        let x = *place as f64 + (1.0 - SPREAD) / 2.0 + step * (turn + 0.5);
        let values: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
        let color = color(of);
        chart.draw_series(values.iter().map(|value| Circle::new((x, *value), 3, color.mix(0.45).filled())))?;
        if let Some(middle) = median(values) {
            let bar = vec![(x - step * 0.4, middle), (x + step * 0.4, middle)];
            chart.draw_series([PathElement::new(bar, color.stroke_width(3))])?;
        }
    }
    Ok(())
}
