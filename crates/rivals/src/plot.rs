//! Plots: one SVG a figure. Every round is a dot and the median a bar, on a logarithmic scale, since workloads and engines
//! differ by orders of magnitude; zeroes are not drawn.

use crate::Failure;
use crate::cells::{Group, median};
use crate::engine::EngineName;
use crate::targets::{Figure, figures};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// Size of one panel, in pixels.
const PANEL: (u32, u32) = (960, 330);
/// Room for the legend.
const LEGEND: u32 = 40;
/// Part of the width of a workload that its engines share.
const SPREAD: f64 = 0.8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn color(engine: EngineName) -> RGBColor {
    match engine {
        EngineName::Leeward => RGBColor(0, 114, 178),
        EngineName::LeewardGrowth4 => RGBColor(86, 180, 233),
        EngineName::LeewardGrowth16 => RGBColor(0, 60, 100),
        EngineName::LeewardInPlace => RGBColor(120, 120, 120),
        EngineName::Rocksdb => RGBColor(213, 94, 0),
        EngineName::RocksdbLz4 => RGBColor(230, 159, 0),
        EngineName::RocksdbBlob => RGBColor(204, 121, 167),
        EngineName::Fjall => RGBColor(0, 158, 115),
    }
}

/// Points of one engine at one place of an axis.
pub(crate) struct Point {
    pub(crate) engine: EngineName,
    /// Number of the label that it stands over.
    pub(crate) place: usize,
    pub(crate) values: Vec<f64>,
}

/// A panel of a plot.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) labels: Vec<String>,
    pub(crate) points: Vec<Point>,
}

/// Draws `figure` of all cells into `file`, a panel a mix.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn comparison(file: &Path, figure: Figure, groups: &[Group<'_>]) -> Result<(), Failure> {
    let mut panels: Vec<Panel> = Vec::new();
    for of_mix in groups.chunk_by(|a, b| (a.mix, a.records) == (b.mix, b.records)) {
        let title = format!("{}, mix {}, {} records", figure.title(), of_mix[0].mix, of_mix[0].records);
        let mut panel = Panel { title, labels: Vec::new(), points: Vec::new() };
        for group in of_mix {
            let values = figures(group, figure);
            let label = group.workload.to_string();
            if values.iter().all(|value| *value <= 0.0) {
                continue;
            }
            if panel.labels.last() != Some(&label) {
                panel.labels.push(label);
            }
            panel.points.push(Point { engine: group.engine, place: panel.labels.len() - 1, values });
        }
        panels.push(panel);
    }
    draw(file, &panels)
}

/// Draws `panels` into `file`, one below the other; those without points are left out.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn draw(file: &Path, panels: &[Panel]) -> Result<(), Failure> {
    let panels: Vec<&Panel> = panels.iter().filter(|panel| !panel.points.is_empty()).collect();
    let mut engines: Vec<EngineName> = Vec::new();
    for point in panels.iter().flat_map(|panel| &panel.points) {
        if !engines.contains(&point.engine) {
            engines.push(point.engine);
        }
    }
    let size = (PANEL.0, LEGEND + PANEL.1 * panels.len().max(1) as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (top, rest) = root.split_vertically(LEGEND);
    legend(&top, &engines)?;
    for (area, panel) in rest.split_evenly((panels.len().max(1), 1)).iter().zip(panels) {
        draw_panel(area, panel, &engines)?;
    }
    root.present().map_err(|error| format!("{}: {error}", file.display()).into())
}

fn legend(area: &Area<'_>, engines: &[EngineName]) -> Result<(), Failure> {
    for (place, engine) in engines.iter().enumerate() {
        let x = 60 + 170 * place as i32;
        area.draw(&Circle::new((x, 20), 6, color(*engine).filled()))?;
        area.draw(&Text::new(engine.to_string(), (x + 12, 13), ("sans-serif", 16)))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel, engines: &[EngineName]) -> Result<(), Failure> {
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
    let step = SPREAD / engines.len() as f64;
    for Point { engine, place, values } in &panel.points {
        let turn = engines.iter().position(|other| other == engine).unwrap_or(0) as f64;
        let x = *place as f64 + (1.0 - SPREAD) / 2.0 + step * (turn + 0.5);
        let values: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
        let color = color(*engine);
        chart.draw_series(values.iter().map(|value| Circle::new((x, *value), 3, color.mix(0.45).filled())))?;
        if let Some(middle) = median(values) {
            let bar = vec![(x - step * 0.4, middle), (x + step * 0.4, middle)];
            chart.draw_series([PathElement::new(bar, color.stroke_width(3))])?;
        }
    }
    Ok(())
}
