package postgres

// CheckSettings is for a pool that Connect did not open.
var CheckSettings = checkSettings
