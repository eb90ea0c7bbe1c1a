//! Plots of the comparison: one SVG a figure, a panel a mix.

use crate::Failure;
use crate::cells::Group;
use crate::engine::EngineName;
use crate::targets::{Figure, figures};
use leeward_bench::{Panel, Point, Series, draw};
use std::path::Path;

/// The name and color of an engine in plots.
pub(crate) fn series(engine: EngineName) -> Series {
    let color = match engine {
        EngineName::Leeward => (0, 114, 178),
        EngineName::LeewardGrowth4 => (86, 180, 233),
        EngineName::LeewardGrowth16 => (0, 60, 100),
        EngineName::LeewardInPlace => (120, 120, 120),
        EngineName::LeewardPgo => (0, 60, 140),
        EngineName::Rocksdb => (213, 94, 0),
        EngineName::RocksdbLz4 => (230, 159, 0),
        EngineName::RocksdbBlob => (204, 121, 167),
        EngineName::Fjall => (0, 158, 115),
    };
    Series { name: engine.to_string(), color }
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
            panel.points.push(Point { series: series(group.engine), place: panel.labels.len() - 1, values });
        }
        panels.push(panel);
    }
    draw(file, &panels)
}
