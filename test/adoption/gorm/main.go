// An application in GORM that keeps orders of customers in another database: "gorm FLOW ARGUMENT..." prints
// the result of a flow as JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
)

type customer struct {
	ID    int64
	Name  string
	Email string `gorm:"unique"`
}

type order struct {
	ID         int64
	CustomerID int64  `gorm:"index;not null"`
	State      string `gorm:"default:new"`
	Total      int
	Lines      []line `gorm:"foreignKey:OrderID;constraint:OnDelete:CASCADE"`
}

type line struct {
	ID      int64
	OrderID int64 `gorm:"index"`
	Article string
}

type review struct {
	ID         int64
	CustomerID *int64 `gorm:"index"`
	Stars      int
}

type invoice struct {
	Number     string `gorm:"primaryKey"`
	CustomerID int64  `gorm:"index;not null"`
}

func (customer) TableName() string { return "customers_customer" }
func (order) TableName() string    { return "store_order" }
func (line) TableName() string     { return "store_line" }
func (review) TableName() string   { return "store_review" }
func (invoice) TableName() string  { return "store_invoice" }

var crm, shop = open("CRM_DB"), open("SHOP_DB")

func open(database string) *gorm.DB {
	dsn := fmt.Sprintf("host=%s port=%s user=%s password='%s' dbname=%s sslmode=disable",
		os.Getenv("DB_HOST"), os.Getenv("DB_PORT"), os.Getenv("DB_USER"), os.Getenv("DB_PASSWORD"), os.Getenv(database))
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{Logger: logger.Discard})
	must(err)
	return db
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func code(err error) any {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	must(err)
	return nil
}

var made int

func newCustomer() customer {
	made++
	c := customer{Name: "Ann", Email: fmt.Sprintf("%d-%d@example.com", os.Getpid(), made)}
	must(crm.Create(&c).Error)
	return c
}

// day plays a working day of the application. It leaves the tables as it found them, and returns its results.
func day([]string) any {
	var out []any
	ann, bob := newCustomer(), newCustomer()
	first := order{CustomerID: ann.ID, Lines: []line{{Article: "a"}, {Article: "b"}}}
	must(shop.Create(&first).Error)
	orders := make([]order, 50)
	for n := range orders {
		orders[n] = order{CustomerID: bob.ID, Total: n}
	}
	must(shop.CreateInBatches(orders, 20).Error)
	must(shop.Model(&order{}).Where("customer_id = ?", bob.ID).Update("total", gorm.Expr("total + 1")).Error)
	var sum int
	must(shop.Model(&order{}).Where("customer_id = ?", bob.ID).Select("sum(total)").Scan(&sum).Error)
	first.CustomerID = bob.ID
	must(shop.Transaction(func(tx *gorm.DB) error {
		must(tx.Save(&first).Error)
		err := tx.Transaction(func(tx *gorm.DB) error {
			must(tx.Create(&order{CustomerID: ann.ID}).Error)
			return errors.New("a savepoint is rolled back")
		})
		out = append(out, sum, err.Error())
		return nil
	}))
	number := ann.Email[:min(19, len(ann.Email))]
	must(shop.Clauses(clause.OnConflict{DoNothing: true}).Create(&invoice{Number: number, CustomerID: ann.ID}).Error)
	must(shop.Clauses(clause.OnConflict{UpdateAll: true}).Create(&invoice{Number: number, CustomerID: bob.ID}).Error)
	out = append(out, counted(&invoice{}, bob.ID))
	deleted := shop.Where("customer_id = ?", bob.ID).Delete(&order{})
	must(deleted.Error)
	must(shop.Delete(&invoice{Number: number}).Error)
	return append(out, deleted.RowsAffected)
}

func counted(model any, customer int64) (n int64) {
	must(shop.Model(model).Where("customer_id = ?", customer).Count(&n).Error)
	return n
}

func customerWith(holders []string) any {
	c := newCustomer()
	if slices.Contains(holders, "order") {
		must(shop.Create(&order{CustomerID: c.ID, Lines: []line{{Article: "a"}}}).Error)
	}
	if slices.Contains(holders, "review") {
		must(shop.Create(&review{CustomerID: &c.ID, Stars: 3}).Error)
	}
	if slices.Contains(holders, "invoice") {
		must(shop.Create(&invoice{Number: c.Email[:min(19, len(c.Email))], CustomerID: c.ID}).Error)
	}
	return c.ID
}

func id(args []string) int64 {
	n, err := strconv.ParseInt(args[0], 10, 64)
	must(err)
	return n
}

func deleteCustomer(args []string) any {
	err := crm.Delete(&customer{ID: id(args)}).Error
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return []string{pg.Code, pg.Detail}
	}
	must(err)
	return "deleted"
}

func orderOf(args []string) any {
	o := order{CustomerID: id(args)}
	must(shop.Create(&o).Error)
	return o.ID
}

func tryOrderOf(args []string) any { return code(shop.Create(&order{CustomerID: id(args)}).Error) }

func many(args []string) any {
	customers := make([]customer, id(args))
	for i := range customers {
		customers[i] = customer{Name: "Eve", Email: fmt.Sprintf("%d-%d@example.org", os.Getpid(), i)}
	}
	must(crm.CreateInBatches(customers, 1000).Error)
	orders := make([]order, len(customers))
	for i, c := range customers {
		orders[i].CustomerID = c.ID
	}
	must(shop.Create(orders).Error)
	return len(orders)
}

func holders(args []string) any {
	var nobody int64
	must(shop.Model(&review{}).Where("customer_id IS NULL").Count(&nobody).Error)
	return []int64{counted(&order{}, id(args)), counted(&review{}, id(args)), counted(&invoice{}, id(args)), nobody}
}

func main() {
	flows := map[string]func([]string) any{
		"schema": func([]string) any {
			must(crm.AutoMigrate(&customer{}))
			must(shop.AutoMigrate(&order{}, &line{}, &review{}, &invoice{}))
			return nil
		},
		"day": day, "customer_with": customerWith, "delete_customer": deleteCustomer, "order_of": orderOf,
		"try_order_of": tryOrderOf, "many": many, "holders": holders,
		"try_orphan": func([]string) any { return tryOrderOf([]string{"999999"}) },
	}
	must(json.NewEncoder(os.Stdout).Encode(flows[os.Args[1]](os.Args[2:])))
}
