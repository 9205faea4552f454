//! A smooth curve for noisy points: the uniform cubic B-spline. Pure.
//!
//! `chart` draws it with the raw points of a sweep. The points are control points: the curve does
//! not pass through them, so that the noise of one measurement moves it little, and it never leaves
//! their convex hull. It is clamped: it begins at the first point and ends at the last.

/// A position on a chart.
pub(crate) type CurvePoint = (f64, f64);

/// The curve of these control points, in even steps within each span; both ends are exactly the
/// first and the last point.
pub(crate) fn spline_curve(points: &[CurvePoint], steps: usize) -> Vec<CurvePoint> {
    let (Some(&first), Some(&last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    if points.len() == 1 {
        return vec![first];
    }
    let steps = steps.max(1);
    // With tripled end points the outermost spans shrink onto them, which clamps the curve.
    let mut controls = vec![first; 2];
    controls.extend_from_slice(points);
    controls.extend([last; 2]);
    let mut places = Vec::with_capacity((controls.len() - 3) * steps + 1);
    places.push(first);
    for span in controls.windows(4) {
        let fraction = |step: usize| step as f64 / steps as f64;
        places.extend((1..=steps).map(|step| spline_point(span, fraction(step))));
    }
    if let Some(end) = places.last_mut() {
        *end = last;
    }
    places
}

/// The position at `t` (0 to 1) in the span of four control points.
fn spline_point(span: &[CurvePoint], t: f64) -> CurvePoint {
    let (t2, t3) = (t * t, t * t * t);
    // The basis of a uniform cubic B-spline; the four add up to 1 for every t.
    let weights = [
        (1.0 - 3.0 * t + 3.0 * t2 - t3) / 6.0,
        (4.0 - 6.0 * t2 + 3.0 * t3) / 6.0,
        (1.0 + 3.0 * t + 3.0 * t2 - 3.0 * t3) / 6.0,
        t3 / 6.0,
    ];
    let pairs = span.iter().zip(weights);
    pairs.fold((0.0, 0.0), |(x, y), (place, weight)| {
        (x + weight * place.0, y + weight * place.1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    const NOISY: [CurvePoint; 6] = [
        (1.0, 10.0),
        (11.0, 300.0),
        (21.0, 20.0),
        (31.0, 310.0),
        (41.0, 5.0),
        (51.0, 200.0),
    ];

    #[test]
    fn begins_and_ends_at_the_outermost_points() {
        let curve = spline_curve(&NOISY, 8);
        assert_eq!((curve[0], curve[curve.len() - 1]), (NOISY[0], NOISY[5]));
        assert_eq!(curve.len(), 7 * 8 + 1);
    }

    #[test]
    fn a_straight_line_stays_straight() {
        let line: Vec<CurvePoint> = (0..9).map(f64::from).map(|x| (x, 3.0 * x + 2.0)).collect();
        let curve = spline_curve(&line, 10);
        assert!(curve.iter().all(|&(x, y)| is_near(y, 3.0 * x + 2.0)));
    }

    #[test]
    fn never_goes_back_and_never_leaves_the_range_of_its_points() {
        let curve = spline_curve(&NOISY, 16);
        assert!(curve.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(curve.iter().all(|&(_, y)| (5.0..=310.0).contains(&y)));
    }

    #[test]
    fn within_it_passes_where_the_basis_says() {
        // At a knot the weights are 1/6, 4/6, 1/6 (t = 0 in the definition above).
        let expected = (10.0 + 4.0 * 300.0 + 20.0) / 6.0;
        let curve = spline_curve(&NOISY, 1);
        assert!(
            curve
                .iter()
                .any(|&(x, y)| is_near(x, 11.0) && is_near(y, expected))
        );
    }

    #[test]
    fn is_smooth() {
        // The direction changes little from step to step, though the points zigzag.
        let curve = spline_curve(&NOISY, 64);
        let slope =
            |pair: &[CurvePoint]| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0).max(1e-6);
        let slopes: Vec<f64> = curve.windows(2).skip(64).map(slope).collect();
        let slopes = &slopes[..slopes.len() - 64];
        assert!(
            slopes
                .windows(2)
                .all(|pair| (pair[1] - pair[0]).abs() < 2.0)
        );
    }

    #[test]
    fn few_points_are_no_mistake() {
        assert!(spline_curve(&[], 8).is_empty());
        assert_eq!(spline_curve(&[(1.0, 2.0)], 8), [(1.0, 2.0)]);
        let two = spline_curve(&[(0.0, 0.0), (2.0, 2.0)], 4);
        assert!(two.iter().all(|&(x, y)| is_near(x, y)));
        assert_eq!(spline_curve(&[(0.0, 0.0), (2.0, 2.0)], 0).len(), 4);
    }
}
