package db

// Shapes returns pairs of a kind's id and a shape of its names. ids are in the order of the model's KindNames.
func (v *Version) Shapes(ids []int32) (kinds []int32, shapes []string) {
	for i, name := range v.Model.KindNames() {
		if kind, err := v.Model.Kind(name); err == nil {
			for _, shape := range kind.Shapes() {
				kinds, shapes = append(kinds, ids[i]), append(shapes, shape)
			}
		}
	}
	return kinds, shapes
}
