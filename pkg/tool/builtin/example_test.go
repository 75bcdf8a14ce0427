package builtin_test

import (
	"context"
	"fmt"
	"log"

	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

func ExampleNew() {
	calculator, err := builtin.New(builtin.Calculator, builtin.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(calculator.Run(context.Background(), tool.Call{Arguments: `{"expression":"0.1 + 0.2"}`}))
	// Output: 0.3 <nil>
}
